"""Training: one loop for every family, from a recipe to a run on disk."""

from headway.training.trainer import Progress, Result

__all__ = ["Progress", "Result"]
