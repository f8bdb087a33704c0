"""Operators whose result's size depends on values: the size is read first, then a program of that size runs."""
