"""The device as torch sees it: its name, `torch.jax`, random numbers, memory, saving and loading."""
