"""Training FLOPs per token.

Each weight of a matrix product costs a token 2 FLOPs in the forward pass and 4 in the backward pass. Attention adds
12 · layers · heads · head width · sequence length, as Chowdhery et al. 2022 (PaLM, appendix B) and nanoGPT count it:
the causal mask is ignored. Model FLOPs utilisation (MFU) is these FLOPs per second over the device's peak FLOP/s.
"""

from headway.config import ModelConfig
from headway.costs.operations import count_pass

ONCE_PER_TEXT = ("pooler", "labels")


def flops_per_token(config: ModelConfig, seq_len: int) -> float:
    """Training FLOPs per token, forward and backward, in sequences of `seq_len` tokens.

    0 for a family that a plug-in added. For an encoder-decoder: per target token, with a source of the same length. The
    head of a classifier, which runs once per text, is not counted.
    """
    forward = count_pass(config, seq_len=seq_len)
    if forward is None:
        return 0.0
    per_token = [o for o in forward.operations if o.is_product and o.name not in ONCE_PER_TEXT]
    return 3 * sum(o.repeats * forward.flops(o) for o in per_token) / seq_len
