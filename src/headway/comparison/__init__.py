"""Several models on the same data at the same budget: one table, one plot."""

from headway.comparison.compare import Comparison, ModelResult
from headway.comparison.lineup import PAIRS, TEXT, ModelTemplate

__all__ = ["PAIRS", "TEXT", "Comparison", "ModelResult", "ModelTemplate"]
