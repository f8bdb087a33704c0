"""XLA programs as data: instructions, where they come from, what they cost, how two of them differ."""
