"""Contestants: of the size asked for, whatever the vocabulary."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.comparison import PAIRS, TEXT
from headway.comparison.lineup import STEP, scale_to_params
from headway.config import model_config
from headway.errors import ConfigError
from headway.models import create

ALL = {**TEXT, **PAIRS}


def size(contestant, width, **given):
    table = {**contestant.model(width), **given}
    return create(model_config(table.pop("family"), table), device="meta").n_params


@pytest.mark.parametrize("name", [name for name in ALL if name != "ngram"])
@settings(max_examples=10)
@given(n_params=st.integers(60_000, 5_000_000), vocab_size=st.integers(50, 1500))
def test_no_other_width_is_nearer_to_what_is_asked_for(name, n_params, vocab_size):
    found = scale_to_params(ALL[name], n_params, vocab_size=vocab_size)
    width = found.d_model
    nearest = abs(create(found, device="meta").n_params - n_params)
    for other in (width - STEP, width + STEP):
        if other > 0:
            assert abs(size(ALL[name], other, vocab_size=vocab_size) - n_params) >= nearest


def test_too_few_parameters_for_a_vocabulary_are_refused_with_a_way_out():
    with pytest.raises(ConfigError, match=r"100,000 parameters are too few .* over 50,000 tokens, which has at least"):
        scale_to_params(TEXT["gpt"], 100_000, vocab_size=50_000)


def test_the_timeline_is_in_order_and_covers_every_family():
    for some in (TEXT, PAIRS):
        years = [contestant.year for contestant in some.values()]
        assert years == sorted(years)
    families = {contestant.model(8)["family"] for contestant in ALL.values()}
    assert families == {"ngram", "nplm", "rnn", "lstm", "gpt", "seq2seq", "bahdanau", "transformer"}
