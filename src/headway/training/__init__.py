"""Training: one loop for every model family, from a recipe to a run on disk."""

from headway.training.progress import Progress
from headway.training.trainer import Result

__all__ = ["Progress", "Result"]
