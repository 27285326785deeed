"""How many tokens fit: the training context, the position limit, and the cache."""

import pytest

import headway
from headway.errors import InputError
from headway.generation.limits import (
    DEFAULT_MAX_NEW_TOKENS,
    cache_capacity,
    context_overflow,
    position_limit,
    remaining_context,
    resolve_max_new_tokens,
    resolve_max_target_tokens,
)
from tests.generation.small_models import char_gpt, char_model


def test_learned_positions_end_and_formulas_do_not():
    assert position_limit(char_gpt(positions="learned")) == 64
    assert position_limit(char_gpt(positions="rotary")) is None
    assert position_limit(char_model("lstm", d_model=8)) is None
    shape = {"d_model": 8, "n_heads": 2, "n_layers": 1, "context": 32}
    assert position_limit(char_model("transformer", **shape, positions="learned")) == 32
    assert position_limit(char_model("seq2seq", d_model=8, context=32)) is None


def test_the_default_is_what_is_left_of_the_context():
    model = char_gpt(positions="rotary", context=1000)
    assert resolve_max_new_tokens(model, 900) == 100
    assert resolve_max_new_tokens(model, 10) == DEFAULT_MAX_NEW_TOKENS
    assert resolve_max_new_tokens(model, 2000) == DEFAULT_MAX_NEW_TOKENS  # past the context already
    assert resolve_max_new_tokens(model, 900, 5000) == 5000
    assert resolve_max_new_tokens(char_model("lstm", d_model=8), 10**6) == DEFAULT_MAX_NEW_TOKENS


def test_a_translation_fits_beside_the_decoder_start_token():
    model = char_model("transformer", d_model=8, n_heads=2, n_layers=1, context=32, positions="learned")
    assert resolve_max_target_tokens(model) == 31
    assert resolve_max_target_tokens(model, 7) == 7
    with pytest.raises(InputError, match="max_new_tokens=32 do not fit in the context of 32: ask for at most 31"):
        resolve_max_target_tokens(model, 32)


def test_overflow_is_counted_from_the_longest_prompt():
    model = char_gpt(positions="rotary")
    assert context_overflow(model, [[1] * 10, [1] * 60], 4) == 0
    assert context_overflow(model, [[1] * 10, [1] * 60], 10) == 6
    assert context_overflow(model, [[1] * 64]) == 1
    assert context_overflow(char_model("lstm", d_model=8), [[1] * 10**4], 10**6) == 0
    assert remaining_context(model, 60) == 4
    assert remaining_context(model, 70) == 0


def test_a_cache_past_the_context_grows_instead():
    assert cache_capacity(char_gpt(), 64) == 64
    assert cache_capacity(char_gpt(), 65) is None


def test_generation_stays_within_the_context():
    model = char_gpt()
    assert len(list(headway.generate(model, "the cat", temperature=0))) <= 64 - 7
    with pytest.raises(InputError, match=r"7 tokens and 58 new ones do not fit in the context of 64.* at most 57"):
        headway.generate(model, "the cat", max_new_tokens=58)
    with pytest.raises(InputError, match="shorten the prompt"):
        headway.generate(model, "the cat " * 10)


def test_rotary_positions_go_past_the_context_on_request():
    model = char_gpt(positions="rotary")
    assert len(list(headway.generate(model, "the cat", temperature=0))) <= 64 - 7  # the default does not
    assert len(list(headway.generate(model, "the cat " * 10, max_new_tokens=70, seed=0))) >= 1


def test_a_huge_request_does_not_allocate_a_huge_cache():
    tokens = headway.generate(char_gpt(positions="rotary"), "the", max_new_tokens=10**12, seed=0)
    assert next(tokens).row == 0


def test_a_prompt_of_many_contexts_is_refused_before_it_is_processed():
    """Positions that are formulas have no limit, but attention over a million tokens would take hours."""
    model = char_gpt(positions="rotary")
    assert resolve_max_new_tokens(model, 64 * 64, 3) == 3
    with pytest.raises(InputError, match="a prompt of 1,000,000 tokens is more than 64 times the context of 64"):
        headway.generate(model, "a" * 1_000_000, max_new_tokens=3)
