"""Deferred execution: eager calls are recorded, and run together as one program once their sequence is known."""
