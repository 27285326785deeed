"""Datasets: one module per training objective."""
