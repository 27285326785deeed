"""Several models on the same data at the same budget: one table, one plot."""

from headway.comparison.lineup import PAIRS, TEXT, ModelTemplate
from headway.comparison.results import Comparison, ModelResult

__all__ = ["PAIRS", "TEXT", "Comparison", "ModelResult", "ModelTemplate"]
