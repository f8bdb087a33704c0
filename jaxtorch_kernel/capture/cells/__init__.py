"""A cell of torch code as one program, whatever shows it: no IPython here."""
