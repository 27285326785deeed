"""The decode loops: cached equals uncached, batched equals single, fast equals reference."""

from itertools import cycle

import pytest
import torch

from headway.generation.decode_loop import DecodeLoop
from headway.generation.reference import decode, pipeline_chooser
from headway.sampling import Pipeline
from tests.models.variants import POSITIONS, gpt, name

N_NEW = 12


def naive(model, prompt, seed, **settings):
    """No cache and no batch: the whole text goes through the model for every token."""
    ids, choose = list(prompt), pipeline_chooser(Pipeline(preset="default", **settings), [prompt], [seed])
    for _ in range(N_NEW):
        ids.append(int(choose(model(torch.tensor([ids]))[:, -1].detach(), [ids])))
    return ids[len(prompt) :]


# Models and samplers do not interact, so each model gets one group of settings and each group at least one model.
CONFIGS = [
    {"positions": positions, "n_kv_heads": n_kv_heads, "norm_order": norm_order}
    for positions, n_kv_heads, norm_order in zip(POSITIONS, cycle((4, 2)), cycle(("pre", "pre", "post")), strict=False)
]
CONFIGS += [
    {"bias": False, "tie_embeddings": False, "norm": "rms", "positions": "rotary", "feed_forward": "swiglu"},
    {"d_head": 10, "n_kv_heads": 1, "positions": "rotary"},
]
SETTINGS = [
    {"temperature": 0.0},
    {"temperature": 0.9},
    {"top_k": 20, "top_p": 0.9, "temperature": 1.3, "repetition_penalty": 1.3},
    {"mirostat_v2_tau": 3.0, "dry_multiplier": 0.8, "no_repeat_ngram": 3},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05, "min_p": 0.02, "frequency_penalty": 0.5},
]


@pytest.mark.parametrize(("config", "settings"), list(zip(CONFIGS, cycle(SETTINGS), strict=False)), ids=name)
def test_cached_and_batched_equals_naive(config, settings):
    """Both loops; in the fast one rows finish at different times, so the batch is compacted."""
    model, prompts = gpt(**config), [[1, 2, 3], [7], [5, 5, 5, 5, 9], [1, 2, 3]]
    seeds = [11 + i for i in range(4)]
    pipe = Pipeline(preset="default", **settings)
    rows = torch.stack(list(decode(model, prompts, pipeline_chooser(pipe, prompts, seeds), N_NEW)), dim=1).tolist()
    for i, prompt in enumerate(prompts):
        assert rows[i] == naive(model, prompt, seeds[i], **settings)
    loop, generated = DecodeLoop(model, prompts, pipe, N_NEW, seeds=seeds), {i: [] for i in range(4)}
    for n in range(N_NEW):
        for row, _, token in loop.step():
            generated[row].append(token)
            if n == 3 + 2 * row:
                loop.finish(row)
    assert generated == {i: rows[i][: 4 + 2 * i] for i in range(4)}
    assert len(loop.rows) < 4
