"""Where the time of a run went: events of the profiler, joined to instructions, cell lines and module paths."""
