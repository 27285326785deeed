"""Several models on the same data at the same budget: one table, one plot."""

from headway.comparison.lineup import ENCODER_TEMPLATES, PAIR_TEMPLATES, TEXT_TEMPLATES, ModelTemplate
from headway.comparison.results import Comparison, ModelResult

__all__ = ["ENCODER_TEMPLATES", "PAIR_TEMPLATES", "TEXT_TEMPLATES", "Comparison", "ModelResult", "ModelTemplate"]
