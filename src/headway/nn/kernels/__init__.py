"""Triton kernels, each compared by test with the plain PyTorch lines it replaces."""
