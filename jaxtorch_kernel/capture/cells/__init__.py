"""Compiles a notebook cell of torch code as one program. Independent of IPython."""
