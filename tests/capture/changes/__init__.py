"""What may change between two runs of captured code, through every way of capturing it."""
