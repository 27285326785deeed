"""Looking further than the next token: beam search and contrastive search, over the one model contract."""

from headway.search.beam import Hypothesis, beam_search
from headway.search.contrastive import contrastive_pick, contrastive_search

__all__ = ["Hypothesis", "beam_search", "contrastive_pick", "contrastive_search"]
