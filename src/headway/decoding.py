"""Writing text with a model, token by token. `decode` is the reference loop: every faster one must match it."""

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headway.errors import ConfigError, InputError
from headway.models.base import LanguageModel, Model, evaluating, language_model
from headway.nn.state import State
from headway.sampling import GREEDY_BELOW, draw, greedy, temperature
from headway.sampling.reshape import check_temperature
from headway.tokenizers import TextStream

DEFAULT_NEW_TOKENS = 256
Choose = Callable[[Tensor], Tensor]  # logits (B, V) → one token a row (B,)


def decode(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    choose: Choose,
    max_new_tokens: int,
    state: State | None = None,
) -> Iterator[Tensor]:
    """Yield the next token of every row (B,), `max_new_tokens` times. A prompt is one step, a new token is one step."""
    rows = [torch.tensor(prompt, dtype=torch.long) for prompt in prompts]
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(model.device)
    if state is None:
        room, context = int(lengths.max()) + max_new_tokens, getattr(model.config, "context", None)
        # Past the context, where positions allow it, the cache grows as it fills.
        state = model.start(batch_size=len(rows), capacity=room if context is None or room <= context else None)
    for n in range(max_new_tokens):
        with torch.inference_mode():  # not around the yield: it would reach into the caller
            logits, state = model.step(ids, state, lengths if n == 0 else None, last=True)
            tokens = choose(logits[:, -1].float())
        yield tokens
        ids = tokens[:, None]


class Token(NamedTuple):
    """One generated token; `text` is what became certain with it (a character may take several tokens)."""

    row: int
    id: int
    text: str
    finish: str | None = None  # with a row's last token: "stop" (end of text) or "length"


def generate(
    model: Model | LanguageModel,
    prompts: str | Sequence[str],
    *,
    max_new_tokens: int | None = None,
    temperature: float = 0.8,
    seed: int | None = None,
) -> Iterator[Token]:
    """Continue one prompt or several, yielding tokens as they come.

    `temperature` 0 is greedy. Row i draws from `seed + i`, so a text depends on its own seed, not on the batch.
    Without `max_new_tokens` a text goes on until its end token, the end of the context the model was trained with,
    or 256 tokens.

        "".join(token.text for token in headway.generate(model, "Once upon", seed=1))
    """
    check_temperature(temperature)
    model = language_model(model)
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InputError("this model has no tokenizer, so it can only be used with ids: headway.decoding.decode")
    rows = [tokenizer.prompt(prompt) for prompt in ([prompts] if isinstance(prompts, str) else prompts)]
    if not rows:
        raise InputError("no prompt to continue: give at least one, which may be empty")
    n_new = _room(model, max(map(len, rows)), max_new_tokens)
    choose = chooser(temperature, len(rows), seed, vocab_size=tokenizer.vocab_size)
    return _with_text(model, decode(model, rows, choose, n_new), [TextStream(tokenizer) for _ in rows], n_new)


def _with_text(model: LanguageModel, steps: Iterable[Tensor], streams: list[TextStream], n_new: int) -> Iterator[Token]:
    with evaluating(model):
        yield from _tokens(steps, streams, n_new, _ends(model))


def _tokens(steps: Iterable[Tensor], streams: list[TextStream], n_new: int, ends: set[int]) -> Iterator[Token]:
    alive = set(range(len(streams)))
    for n, tokens in enumerate(steps, start=1):
        for row, id in enumerate(tokens.tolist()):
            if row not in alive:
                continue
            finish: str | None
            if id in ends:
                finish, text = "stop", streams[row].flush()
            else:
                finish, text = "length" if n == n_new else None, streams[row].push(id)
                if finish:
                    text += streams[row].flush()
            if finish:
                alive.remove(row)
            yield Token(row, id, text, finish)
        if not alive:
            return


def _ends(model: LanguageModel) -> set[int]:
    tokenizer = None if model.tokenizer is None else model.tokenizer.eos_id
    return {id for id in (model.config.eos_id, tokenizer) if id is not None}


def _room(model: LanguageModel, longest: int, max_new_tokens: int | None) -> int:
    """How many tokens to make: as many as asked, or as fit."""
    if max_new_tokens is not None and max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens={max_new_tokens} must be at least 1")
    context = getattr(model.config, "context", None)
    place = getattr(model, "positions", None)
    limit = None if place is None else place.limit  # positions that are formulas have none
    if limit is not None and longest + (max_new_tokens or 1) > limit:
        raise InputError(
            f"a prompt of {longest} tokens and {max_new_tokens or 1} new ones do not fit in the context of {limit}: "
            f"shorten the prompt" + (f", or ask for at most {limit - longest}" if longest < limit else "")
        )
    fits = DEFAULT_NEW_TOKENS if context is None or context <= longest else context - longest
    return max_new_tokens or min(DEFAULT_NEW_TOKENS, fits)


def chooser(heat: float, n_rows: int, seed: int | None, *, vocab_size: int) -> Choose:
    """Greedy or random choice; entries past the tokenizer's vocabulary are padding and never chosen."""
    base = secrets.randbits(32) if seed is None else seed  # torch.seed() would reseed the caller's generator
    generators = [torch.Generator().manual_seed((base + row) % 2**63) for row in range(n_rows)]

    def choose(logits: Tensor) -> Tensor:
        logits = logits[:, :vocab_size]
        return greedy(logits) if heat < GREEDY_BELOW else draw(temperature(logits, heat), generators)

    return choose
