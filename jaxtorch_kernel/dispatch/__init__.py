"""The path of a call: operator and arguments -> key -> compiled program -> result."""
