"""Notebook views. They draw the plain data of `jaxtorch.insight` and compute nothing."""
