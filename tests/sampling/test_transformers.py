"""transformers' processors where the definitions agree, on thousands of rows without ties."""

import pytest
import torch
import transformers

from headway.sampling import Pipeline


def rows(n, V, seed):
    scale = torch.rand(n, 1, generator=torch.Generator().manual_seed(seed)) * 6 + 0.2
    return scale * torch.randn(n, V, generator=torch.Generator().manual_seed(seed + 1))


PAIRS = [
    ({"stage": "temperature", "temperature": 0.7}, lambda: transformers.TemperatureLogitsWarper(0.7)),
    ({"stage": "top_k", "k": 13}, lambda: transformers.TopKLogitsWarper(13)),
    ({"stage": "top_k", "k": 5, "min_keep": 8}, lambda: transformers.TopKLogitsWarper(5, min_tokens_to_keep=8)),
    ({"stage": "top_p", "p": 0.9}, lambda: transformers.TopPLogitsWarper(0.9)),
    ({"stage": "top_p", "p": 0.3, "min_keep": 3}, lambda: transformers.TopPLogitsWarper(0.3, min_tokens_to_keep=3)),
    ({"stage": "min_p", "p": 0.07}, lambda: transformers.MinPLogitsWarper(0.07)),
    ({"stage": "typical", "p": 0.8}, lambda: transformers.TypicalLogitsWarper(0.8)),
    ({"stage": "epsilon_cutoff", "epsilon": 4e-3}, lambda: transformers.EpsilonLogitsWarper(4e-3)),
    ({"stage": "eta_cutoff", "epsilon": 4e-3}, lambda: transformers.EtaLogitsWarper(4e-3)),
    ({"stage": "repetition_penalty", "penalty": 1.3}, lambda: transformers.RepetitionPenaltyLogitsProcessor(1.3)),
    ({"stage": "no_repeat_ngram", "n": 3}, lambda: transformers.NoRepeatNGramLogitsProcessor(3)),
]


@pytest.mark.parametrize(("stage", "theirs"), PAIRS, ids=lambda v: v["stage"] if isinstance(v, dict) else "")
@pytest.mark.parametrize("V", [50, 1000])
def test_the_same_result(stage, theirs, V):
    """Rows where the mass is within 1e-5 of a threshold may differ: at most one in a thousand."""
    n = 2000
    logits = rows(n, V, 3)
    history = torch.randint(8, (n, 30), generator=torch.Generator().manual_seed(5))
    ours, other = Pipeline([stage]).apply(logits, history=history), theirs()(history, logits.clone())
    same = (ours.isfinite() == other.isfinite()).all(dim=-1)
    assert same.float().mean() >= 0.999
    torch.testing.assert_close(ours[same], other[same], rtol=1e-5, atol=1e-6)


def test_a_whole_list_of_processors():
    logits = rows(2000, 500, 9)
    pipe = Pipeline(preset="temperature_first", temperature=0.8, top_k=50, top_p=0.95, min_p=0.02)
    theirs = transformers.LogitsProcessorList(
        [
            transformers.TemperatureLogitsWarper(0.8),
            transformers.TopKLogitsWarper(50),
            transformers.TopPLogitsWarper(0.95),
            transformers.MinPLogitsWarper(0.02),
        ]
    )
    ours, other = pipe.apply(logits), theirs(None, logits)
    same = (ours.isfinite() == other.isfinite()).all(dim=-1)
    assert same.float().mean() >= 0.999
    torch.testing.assert_close(ours[same], other[same])
