"""A keyword that a function does not have is answered with the one that the user probably meant."""

from inspect import signature

import pytest

import headway
from headway.config import TransformerConfig
from headway.errors import ConfigError
from headway.generation.generate import search
from headway.generation.translate import translations
from headway.generation.unknown_settings import ELSEWHERE, SYNONYMS
from headway.models import Transformer
from headway.sampling import FLAT_NAMES
from tests.generation.small_models import CHARS, char_gpt

ANSWERS = [
    (headway.generate, "max_tokens", "Did you mean 'max_new_tokens'?"),
    (headway.generate, "max_length", "Did you mean 'max_new_tokens'?"),
    (headway.generate, "num_tokens", "Did you mean 'max_new_tokens'?"),
    (headway.generate, "max_new_token", "Did you mean 'max_new_tokens'?"),
    (headway.generate, "temp", "Did you mean 'temperature'?"),
    (headway.generate, "topp", "Did you mean 'top_p'?"),
    (headway.generate, "n", "Use headway.complete(model, prompts, n=…)."),
    (headway.generate, "num_return_sequences", "Use headway.complete(model, prompts, n=…)."),
    (headway.generate, "beams", "Use headway.generation.generate.search(model, prompts, num_beams=…)."),
    (headway.generate, "zzz", "`headway generate --help-samplers` shows all samplers"),
    (headway.complete, "max_tokens", "Did you mean 'max_new_tokens'?"),
    (headway.complete, "num_return_sequences", "Did you mean 'n'?"),
    (headway.complete, "logprobs", "Use headway.generate(model, prompts, logprobs=…)."),
    (search, "beams", "Did you mean 'num_beams'?"),
    (search, "num_return_sequences", "Did you mean 'n_best'?"),
]


@pytest.fixture(scope="module")
def model():
    return char_gpt()


@pytest.mark.parametrize(("function", "name", "answer"), ANSWERS, ids=lambda value: getattr(value, "__name__", value))
def test_the_answer_is_a_setting_of_the_function_or_the_function_that_has_it(model, function, name, answer):
    with pytest.raises(ConfigError) as refused:
        function(model, "the", **{name: 3})
    assert str(refused.value) == f"no setting named {name!r}. {answer}"


def test_translate_answers_too():
    special_ids = {"vocab_size": CHARS.vocab_size, "bos_id": CHARS.bos_id, "eos_id": CHARS.eos_id}
    sizes = {"n_encoder_layers": 1, "n_decoder_layers": 1, "n_heads": 2, "d_model": 8, "context": 16}
    model = Transformer(TransformerConfig(**special_ids, **sizes))
    model.tokenizer = CHARS
    for name, meant in {"beam_size": "num_beams", "n": "n_best", "max_length": "max_new_tokens"}.items():
        with pytest.raises(ConfigError, match=f"no setting named '{name}'. Did you mean '{meant}'"):
            headway.translate(model, "the", **{name: 2})


def test_the_tables_name_settings_that_exist():
    functions = (headway.generate, headway.complete, search, translations)
    settings = {name for function in functions for name in signature(function).parameters} | set(FLAT_NAMES)
    assert {meant for names in SYNONYMS.values() for meant in names} | set(ELSEWHERE) <= settings
