"""A sampler: keep the most likely tokens as long as their entropy stays below a fraction of the whole entropy."""

import torch
from torch import Tensor

import headway
from headway.sampling import NumberParam


def top_h(logits: Tensor, alpha: Tensor) -> Tensor:
    """Keep the longest prefix of the ranking whose own entropy is at most α times that of the distribution.

    logits (B, V), removed tokens −inf; alpha (B, 1), one value per row. At least the best token stays.
    """
    p, order = logits.softmax(dim=-1).sort(dim=-1, descending=True)
    mass = p.cumsum(dim=-1)
    entropy = torch.special.entr(p).cumsum(dim=-1)  # Σ −p ln p of the first tokens
    of_prefix = entropy / mass + mass.log()  # … after renormalising them
    keep = of_prefix <= alpha * entropy[:, -1:]
    keep[:, 0] = True
    kept = torch.zeros_like(keep).scatter(1, order, keep.cumprod(dim=-1).bool())
    return logits.masked_fill(~kept, -torch.inf)


headway.register(
    "sampler",
    "top_h",
    top_h,
    parameters={"alpha": NumberParam("fraction of the entropy to keep", 0, 1, off=1.0, usual="0.4")},
)
