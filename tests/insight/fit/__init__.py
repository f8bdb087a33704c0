"""Tests of the fit report."""
