"""Notebook views: HTML drawn from plain data. They compute nothing."""
