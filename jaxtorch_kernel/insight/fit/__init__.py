"""The fit report: what a compiled program needs on a chip, as data."""
