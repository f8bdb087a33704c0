"""Many devices: meshes and shardings, several processes, checkpoints."""
