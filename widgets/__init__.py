"""Views for notebooks: HTML drawn from plain data. They compute nothing."""
