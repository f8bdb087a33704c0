"""Many devices: meshes and shardings in JAX's words, several processes, checkpoints."""
