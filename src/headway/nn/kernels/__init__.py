"""Fast kernels in Triton and for CPUs: cross-entropy, matrix products, encoders, decode steps.

Tests compare each with the code it replaces.
"""
