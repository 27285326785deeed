"""Triton kernels. Tests compare each with the plain PyTorch code it replaces."""
