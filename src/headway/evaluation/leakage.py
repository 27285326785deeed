"""Does a model see what it predicts? If so, its loss does not measure prediction, and generation differs from it."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headway.config.ablations import SEES_TARGETS
from headway.models.adapter import language_model
from headway.models.base import AnyLanguageModel, Seq2SeqLM, eval_mode

LEAK_WARNING = f"{SEES_TARGETS}: a later token changes earlier logits, so the score does not measure prediction"

N_TOKENS = 12  # of the sequence that is tried
SEED = 0
RELATIVE_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}  # of the largest logit; other dtypes: 1e-2


def sees_future(model: AnyLanguageModel | Seq2SeqLM) -> bool:
    """Whether a later token changes an earlier logit of `model(ids)`, as it does without a causal mask.

    Two sequences of random tokens that differ in the last one only must have equal logits before it.
    """
    lm: Any = model if isinstance(model, Seq2SeqLM) else language_model(model)
    vocab_size = getattr(lm.config, "vocab_size", 0)  # unknown for some models of a plug-in
    n_tokens = min(N_TOKENS, lm.config.context or N_TOKENS)
    if vocab_size < 2 or n_tokens < 2:
        return False
    generator = torch.Generator().manual_seed(SEED)
    row = torch.randint(vocab_size, (n_tokens,), generator=generator)
    changed_row = row.clone()
    changed_row[-1] = (row[-1] + 1) % vocab_size
    ids = torch.stack((row, changed_row)).to(lm.device)  # (2, T)
    source = {"source": ids[:1].expand(2, -1)} if isinstance(lm, Seq2SeqLM) else {}
    forward = partial(nn.Module.__call__, lm) if isinstance(lm, nn.Module) else lm  # without a warning about BOS
    with eval_mode(lm), torch.inference_mode():
        logits: Tensor = forward(ids, **source)[:, :-1]  # (2, T − 1, V)
    finite = logits.float().nan_to_num(0.0, 0.0, 0.0)  # an n-gram gives −∞ to what it has never seen
    tolerance = RELATIVE_TOLERANCE.get(logits.dtype, 1e-2) * max(1e-3, float(finite.abs().max()))
    return float((finite[0] - finite[1]).abs().max()) > tolerance
