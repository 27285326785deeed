"""Training and scoring."""

from headway.training.evaluation import Score, TaskScore, evaluate
from headway.training.loop import Progress, Result
from headway.training.start import train

__all__ = ["Progress", "Result", "Score", "TaskScore", "evaluate", "train"]
