"""Equality with transformers' logits processors where the definitions agree, on thousands of rows without ties."""

import pytest
import torch
import transformers

from headway.sampling import Pipeline


def random_logits(n, V, seed):
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


@pytest.mark.parametrize(("stage", "peer"), PAIRS, ids=lambda v: v["stage"] if isinstance(v, dict) else "")
@pytest.mark.parametrize("V", [50, 1000])
def test_a_sampler_equals_the_processor_of_transformers(stage, peer, V):
    """At most one row in a thousand may differ: those with a mass within 1e-5 of a threshold."""
    n = 1000
    logits = random_logits(n, V, 3)
    history = torch.randint(8, (n, 30), generator=torch.Generator().manual_seed(5))
    ours, theirs = Pipeline([stage]).apply(logits, history=history), peer()(history, logits.clone())
    same = (ours.isfinite() == theirs.isfinite()).all(dim=-1)
    assert same.float().mean() >= 0.999
    torch.testing.assert_close(ours[same], theirs[same], rtol=1e-5, atol=1e-6)


def test_a_pipeline_equals_a_list_of_processors():
    logits = random_logits(2000, 500, 9)
    pipe = Pipeline(preset="temperature_first", temperature=0.8, top_k=50, top_p=0.95, min_p=0.02)
    processors = transformers.LogitsProcessorList(
        [
            transformers.TemperatureLogitsWarper(0.8),
            transformers.TopKLogitsWarper(50),
            transformers.TopPLogitsWarper(0.95),
            transformers.MinPLogitsWarper(0.02),
        ]
    )
    ours, theirs = pipe.apply(logits), processors(None, logits)
    same = (ours.isfinite() == theirs.isfinite()).all(dim=-1)
    assert same.float().mean() >= 0.999
    torch.testing.assert_close(ours[same], theirs[same])
