"""Training FLOPs per token.

Each weight of a matrix product costs a token 2 FLOPs in the forward pass and 4 in the backward pass. Attention adds
12 · layers · heads · head width · sequence length, as Chowdhery et al. 2022 (PaLM, appendix B) and nanoGPT count it:
the causal mask is ignored. Model FLOPs utilisation (MFU) is these FLOPs per second over the device's peak FLOPS.
"""

from headway.config import ModelConfig
from headway.costs.operations import count_pass


def flops_per_token(config: ModelConfig, seq_len: int) -> float:
    """Training FLOPs per token, forward and backward, in sequences of `seq_len` tokens.

    0 for a family that a plug-in added. For an encoder-decoder: per target token, with a source of the same length.
    """
    forward = count_pass(config, seq_len=seq_len)
    return 0.0 if forward is None else 3 * forward.total_flops / seq_len
