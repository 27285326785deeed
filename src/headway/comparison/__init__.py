"""Several models on the same data at the same budget: one table, one picture."""

from headway.comparison.contest import Comparison, ModelResult, compare
from headway.comparison.contestants import PAIRS, TEXT, Contestant

__all__ = ["PAIRS", "TEXT", "Comparison", "Contestant", "ModelResult", "compare"]
