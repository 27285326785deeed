"""Datasets: one per training objective."""
