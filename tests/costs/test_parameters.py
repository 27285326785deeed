"""Parameters counted from configs equal those of the models."""

import pytest

import headway
from headway.config import FAMILIES, model_config
from headway.costs import count_parameters, largest_setting
from tests.models.variants import BAHDANAUS, GPTS, NPLMS, RNNS, SEQ2SEQS, SMALL, TINY, TRANSFORMERS

STACK = {**TINY, "n_layers": 2}
RECURRENT = {"vocab_size": 41, "d_model": 12}
VARIANTS = {
    "gpt": [STACK | variant for variant in GPTS],
    "bert": [STACK | variant for variant in GPTS],
    "transformer": [STACK | variant for variant in TRANSFORMERS],
    "nplm": [SMALL | variant for variant in NPLMS],
    "rnn": [SMALL | variant for variant in RNNS]
    + [SMALL | {"n_layers": n, "tie_embeddings": tied} for n in (1, 2, 5) for tied in (True, False)],
    "seq2seq": [RECURRENT | variant for variant in SEQ2SEQS],
    "bahdanau": [RECURRENT | variant for variant in BAHDANAUS],
    "bilstm": [SMALL | {"n_layers": n, "cell": cell} for n in (1, 3) for cell in ("lstm", "gru", "peephole")],
}


@pytest.mark.parametrize("family", VARIANTS)
def test_every_variant_is_counted_exactly(family):
    for variant in VARIANTS[family]:
        config = model_config(family, variant)
        assert count_parameters(config) == headway.create(config, device="meta").n_params, variant


@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "bert-base", "transformer-big", *FAMILIES])
def test_every_family_is_counted_exactly_and_ngrams_not_at_all(name):
    config = model_config(name)
    expected = None if name == "ngram" else headway.create(config, device="meta").n_params
    assert count_parameters(config) == expected


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("gpt", "d_ff=1000000000"),
        ("gpt", "d_model=12000000"),
        ("gpt", "context=1000000000"),
        ("bert", "vocab_size=1000000000"),
        ("transformer", "n_decoder_layers=1000"),
        ("lstm", "n_layers=1000"),
        ("nplm", "d_hidden=1000000000"),
        ("bahdanau", "d_out=1000000000"),
        ("bilstm", "d_hidden=1000000"),
        ("seq2seq", "d_model=1000000"),
    ],
)
def test_the_setting_that_makes_a_model_large_is_named(name, setting):
    key, value = setting.split("=")
    assert largest_setting(model_config(name, {key: int(value)})) == setting


def test_a_thousand_layers_are_counted():
    config = model_config("gpt", {"n_layers": 1000})
    assert count_parameters(config) == 124_439_808 + (1000 - 12) * 7_087_872
