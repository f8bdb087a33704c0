"""XLA programs as data: instructions, their origins, their costs, and differences between programs."""
