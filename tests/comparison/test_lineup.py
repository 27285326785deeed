"""Templates scale to any parameter count, whatever the vocabulary."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.comparison import ENCODER_TEMPLATES, PAIR_TEMPLATES, TEXT_TEMPLATES
from headway.comparison.lineup import LINEUPS, WIDTH_STEP, scale_to_params
from headway.config import model_config
from headway.errors import ConfigError
from headway.models import create

TEMPLATES = {**TEXT_TEMPLATES, **PAIR_TEMPLATES, **ENCODER_TEMPLATES}


def n_params_at(template, width, **overrides):
    table = {**template.model(width), **overrides}
    return create(model_config(table.pop("family"), table), device="meta").n_params


@pytest.mark.parametrize("name", [name for name in TEMPLATES if TEMPLATES[name].is_scalable])
@settings(max_examples=3)
@given(n_params=st.integers(60_000, 5_000_000), vocab_size=st.integers(50, 1500))
def test_no_other_width_is_nearer_to_the_parameter_count(name, n_params, vocab_size):
    config = scale_to_params(TEMPLATES[name], n_params, vocab_size=vocab_size)
    distance = abs(create(config, device="meta").n_params - n_params)
    for width in (config.d_model - WIDTH_STEP, config.d_model + WIDTH_STEP):
        if width > 0:
            assert abs(n_params_at(TEMPLATES[name], width, vocab_size=vocab_size) - n_params) >= distance


def test_too_few_parameters_for_the_vocabulary_are_refused():
    message = r"100,000 parameters are too few .* vocabulary of 50,000 tokens, .* set a smaller tokenizer.vocab_size"
    with pytest.raises(ConfigError, match=message):
        scale_to_params(TEXT_TEMPLATES["gpt"], 100_000, vocab_size=50_000)


def test_lineups_are_in_order_of_years_and_cover_every_family():
    for lineup in LINEUPS.values():
        years = [template.year for template in lineup.values()]
        assert years == sorted(years)
    families = {template.family for template in TEMPLATES.values()}
    assert families == {
        "ngram", "nplm", "rnn", "lstm", "gpt", "seq2seq", "bahdanau", "transformer", "bow", "bilstm", "bert"
    }  # fmt: skip
    assert [name for name, template in TEMPLATES.items() if not template.is_scalable] == ["ngram", "bow", "minilm"]
