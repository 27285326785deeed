"""The reference decode loop, in 20 lines. Every faster path (decode_loop.py) must produce the same tokens."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from headway.generation.limits import cache_capacity
from headway.models.base import LanguageModel
from headway.nn.padding import pad_ids
from headway.nn.state import State
from headway.sampling import PerRowPipeline, Pipeline

TokenChooser = Callable[[Tensor, list[list[int]]], Tensor]  # logits (B, V), all tokens so far → next tokens (B,)


def decode(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    choose: TokenChooser,
    max_new_tokens: int,
    state: State | None = None,
) -> Iterator[Tensor]:
    """Yield the next token of every row (B,), `max_new_tokens` times: one step for the prompts (prefill), then one
    step per token (decode)."""
    rows = [list(prompt) for prompt in prompts]
    ids, lengths = pad_ids(rows, model.device)
    if state is None:
        capacity = cache_capacity(model, ids.shape[1] + max_new_tokens)
        state = model.start(batch_size=len(rows), capacity=capacity)
    for n in range(max_new_tokens):
        with torch.inference_mode():  # not around the yield: it would leak into the caller
            logits, state = model.step(ids, state, lengths if n == 0 else None, last=True)
            tokens = choose(logits[:, -1].float(), rows)
        yield tokens
        ids = tokens[:, None]
        for row, token in zip(rows, tokens.tolist(), strict=True):
            row.append(token)


def pipeline_chooser(
    pipe: Pipeline | PerRowPipeline,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    *,
    vocab_size: int | None = None,
) -> TokenChooser:
    """Choose tokens by a sampler pipeline; row i draws from the i-th seed. Logits past `vocab_size` are padding."""
    sampler_state = pipe.start(len(prompts), seeds)
    n_prompt = [len(prompt) for prompt in prompts]

    def choose(logits: Tensor, rows: list[list[int]]) -> Tensor:
        nonlocal sampler_state
        logits = logits[:, :vocab_size]
        sampler_state = sampler_state.to(logits.device)
        tokens, sampler_state = pipe.draw(logits, history=rows, n_prompt=n_prompt, state=sampler_state)
        return tokens

    return choose
