"""Storage of tensor data: buffers, views over them, dtypes, transfers."""
