"""What the engine did, as plain data: nothing here draws, and nothing here changes the session."""
