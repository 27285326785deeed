"""The reference decoding loop: every faster one (generation/decode_loop.py) must write the same tokens."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from headway.models.base import LanguageModel, Seq2SeqLM
from headway.nn.kv_cache import State
from headway.sampling import PerRowPipeline, Pipeline

Choose = Callable[[Tensor, list[list[int]]], Tensor]  # logits (B, V) and all tokens so far → one token a row (B,)


def decode(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    choose: Choose,
    max_new_tokens: int,
    state: State | None = None,
) -> Iterator[Tensor]:
    """Yield the next token of every row (B,), `max_new_tokens` times. A prompt is one step, a new token is one step."""
    rows = [list(prompt) for prompt in prompts]
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row).long() for row in rows], batch_first=True)
    ids = ids.to(model.device)
    if state is None:
        state = model.start(batch_size=len(rows), capacity=cache_capacity(model, int(lengths.max()) + max_new_tokens))
    for n in range(max_new_tokens):
        with torch.inference_mode():  # not around the yield: it would reach into the caller
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
) -> Choose:
    """The choice of a pipeline, row i drawing from the i-th seed; entries past the vocabulary are padding."""
    state = pipe.start(len(prompts), seeds)
    n_prompt = [len(prompt) for prompt in prompts]

    def choose(logits: Tensor, rows: list[list[int]]) -> Tensor:
        nonlocal state
        here = logits[:, :vocab_size]
        state = state.to(here.device)
        tokens, state = pipe.draw(here, history=rows, n_prompt=n_prompt, state=state)
        return tokens

    return choose


def cache_capacity(model: LanguageModel | Seq2SeqLM, n_tokens: int) -> int | None:
    """The capacity of a cache for so many tokens; past the context, where positions allow it, it grows as it fills."""
    context = model.config.context
    return n_tokens if context is None or n_tokens <= context else None
