"""What is no language model is refused, with the way out: a path, an encoder, an encoder-decoder."""

from pathlib import Path

import pytest

import headway
from headway.analysis.attention import text_attention
from headway.errors import InputError
from headway.models import MaskedLM, language_model

FUNCTIONS = [headway.generate, headway.complete, headway.evaluate, headway.translate, text_attention]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("path", ["runs/tales", Path("runs/tales")], ids=["str", "Path"])
def test_a_path_in_place_of_a_model_is_answered_with_load(function, path):
    with pytest.raises(InputError, match=r"^'runs/tales' is a path: pass headway\.load\('runs/tales'\)$"):
        function(path, "Once")


@pytest.mark.parametrize("function", [headway.generate, headway.evaluate], ids=lambda function: function.__name__)
def test_an_encoder_is_told_from_a_language_model_by_what_it_does(function):
    bert = headway.create("bert", vocab_size=20, n_layers=1, n_heads=2, d_model=8, device="cpu")
    rest = "does not continue text: use a language model such as gpt"
    with pytest.raises(InputError, match=rf"^a MaskedLM predicts masked tokens \(`headway fill` uses it\) and {rest}$"):
        function(MaskedLM(bert), "Once")
    with pytest.raises(InputError, match=f"^a BERT encodes text and {rest}$"):
        function(bert, "Once")


def test_an_object_that_only_encodes_is_no_encoder_decoder():
    class Encoder:
        def encode(self, text):
            return text

    with pytest.raises(InputError, match="Encoder is not a language model: it has no `__call__`, `start`, `step`"):
        language_model(Encoder())


def test_an_encoder_decoder_of_any_class_is_sent_to_translate():
    class Duck:
        def __call__(self, ids, source):
            return ids

        start = step = encode = __call__

    with pytest.raises(InputError, match=r"Duck is a sequence-to-sequence model.*headway\.translate"):
        language_model(Duck())
