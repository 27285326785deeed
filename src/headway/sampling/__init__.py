"""Choosing the next token: pure functions on logits that never see a model."""

from headway.sampling.choose import GREEDY_BELOW, draw, greedy
from headway.sampling.reshape import temperature

__all__ = ["GREEDY_BELOW", "draw", "greedy", "temperature"]
