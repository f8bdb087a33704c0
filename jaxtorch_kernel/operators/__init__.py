"""Kernels over tensors, for operators that are not functions of arrays and for JAX functions in torch's graph."""
