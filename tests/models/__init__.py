"""Small whole models, trained on the device and on the CPU."""
