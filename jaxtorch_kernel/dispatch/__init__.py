"""One call's way: operator and arguments -> key -> compiled program -> result."""
