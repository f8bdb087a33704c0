"""Kernels over tensors: for operators that are no function of arrays, and for JAX functions in torch's graph."""
