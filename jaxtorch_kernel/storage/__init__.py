"""Where a tensor's data is: buffers, the views over them, dtypes, transfers."""
