"""Tests with several real processes of this machine, which exchange data by gloo."""
