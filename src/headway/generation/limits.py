"""How many tokens fit: into a model's context, past its end, and into a cache.

Two numbers bound the length of a sequence:

- the training context (`config.context`): the longest sequence a model was trained on. Families that read any length,
  such as an n-gram or an LSTM, have none (None).
- the position limit: where a table of positions ends (learned, per-layer, relative). Positions that are formulas
  (sinusoidal, rotary, ALiBi) have no limit, so you may ask such a model to generate past its training context.
"""

from collections.abc import Sequence

from headway.errors import InputError
from headway.generation.inputs import check_int
from headway.models.base import LanguageModel, Model, Seq2SeqLM

DEFAULT_MAX_NEW_TOKENS = 256
MAX_PROMPT_CONTEXTS = 64  # attention takes quadratic time, and no model continues a prompt that long sensibly


def position_limit(model: Model | LanguageModel | Seq2SeqLM) -> int | None:
    """The longest sequence the (decoder's) positions can represent; None if they have no limit."""
    positions = getattr(getattr(model, "decoder", model), "positions", None)
    return None if positions is None else positions.limit


def remaining_context(model: LanguageModel | Seq2SeqLM, n_prompt: int) -> int | None:
    """Tokens that fit into the training context after a prompt of `n_prompt` tokens; None without a context."""
    context = model.config.context
    return None if context is None else max(0, context - n_prompt)


def context_overflow(model: LanguageModel, prompts: Sequence[Sequence[int]], max_new_tokens: int | None = None) -> int:
    """By how many tokens the longest prompt, continued, exceeds the training context; 0 if it fits.

    Without `max_new_tokens` the prompt is continued by one token.
    """
    context = model.config.context
    n_tokens = max(map(len, prompts)) + (max_new_tokens or 1)
    return 0 if context is None else max(0, n_tokens - context)


def resolve_max_new_tokens(model: LanguageModel, n_prompt: int, requested: int | None = None) -> int:
    """How many tokens to generate after a prompt of `n_prompt` tokens.

    By default, what is left of the training context, at most `DEFAULT_MAX_NEW_TOKENS`. `requested` tokens may go past
    the training context, but not past the position limit.
    """
    if requested is not None:
        check_int("max_new_tokens", requested, 1)
    limit, n_new = position_limit(model), requested or 1
    if limit is not None and n_prompt + n_new > limit:
        raise InputError(
            f"a prompt of {n_prompt} tokens and {n_new} new ones do not fit in the context of {limit}: "
            f"shorten the prompt" + (f", or ask for at most {limit - n_prompt}" if n_prompt < limit else "")
        )
    context = model.config.context
    if context is not None and n_prompt > MAX_PROMPT_CONTEXTS * context:
        raise InputError(
            f"a prompt of {n_prompt:,} tokens is more than {MAX_PROMPT_CONTEXTS} times the context of {context:,} that "
            f"the model was trained with: shorten the prompt"
        )
    if requested is not None:
        return requested
    # A prompt that fills the context already (or a model without one) leaves the default.
    return min(DEFAULT_MAX_NEW_TOKENS, remaining_context(model, n_prompt) or DEFAULT_MAX_NEW_TOKENS)


def resolve_max_target_tokens(model: Seq2SeqLM, requested: int | None = None) -> int:
    """How many tokens a translation may have, EOS included; one position is taken by the decoder start token."""
    if requested is None:
        return max(1, model.config.context - 1)
    check_int("max_new_tokens", requested, 1)
    limit = position_limit(model)
    if limit is not None and requested >= limit:
        raise InputError(
            f"max_new_tokens={requested} do not fit in the context of {limit}: ask for at most {limit - 1}"
        )
    return requested


def cache_capacity(model: LanguageModel | Seq2SeqLM, n_tokens: int) -> int | None:
    """The capacity of a cache for `n_tokens` positions. None past the training context: the cache then starts small
    and grows, so that a generous `max_new_tokens` does not allocate memory that may never be used."""
    context = model.config.context
    return n_tokens if context is None or n_tokens <= context else None
