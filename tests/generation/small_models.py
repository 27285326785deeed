"""Small models with a tokenizer, for tests that generate text."""

import torch

import headway
from headway import tokenizers
from headway.models import Model
from tests.models.variants import TINY, amplified

TEXTS = ["the cat sat on the mat", "a dog", "cats and dogs and mats"]
CHARS = tokenizers.train("char", TEXTS)


def char_gpt(**config) -> Model:
    """A GPT with random weights over the characters of TEXTS."""
    tokenizer = tokenizers.train("char", TEXTS)
    special_ids = {"bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id}
    shape = {**TINY, "n_layers": 2, "context": 64, "vocab_size": tokenizer.vocab_size}
    model = amplified(headway.create("gpt", **{**shape, **special_ids, **config}))
    model.tokenizer = tokenizer
    return model


def char_gpt_that_ends() -> Model:
    """The same, always certain that the text is over."""
    model = char_gpt()
    with torch.no_grad():
        model.norm.weight.zero_()
        model.norm.bias.copy_(model.embedding.weight[model.config.eos_id] * 100)
    return model


def char_model(family: str, **config) -> Model:
    """A small model of any family over the characters of TEXTS; an n-gram is fitted to them."""
    torch.manual_seed(0)
    special_ids = {"vocab_size": CHARS.vocab_size, "bos_id": CHARS.bos_id, "eos_id": CHARS.eos_id}
    model = headway.create(family, **special_ids, **config).eval()
    if family == "ngram":
        model.fit(torch.tensor(CHARS.encode_stream(TEXTS * 5)))
    model.tokenizer = CHARS
    return model


def model_that_writes(text: str) -> Model:
    """An n-gram fitted to one text, which it writes character by character, whatever the prompt."""
    tokenizer = tokenizers.train("char", [text])
    model = headway.create("ngram", vocab_size=tokenizer.vocab_size, order=len(text))
    model.fit(torch.tensor(tokenizer.encode_stream([text] * 50)))
    model.tokenizer = tokenizer
    return model


def text_of(tokens) -> str:
    return "".join(token.text for token in tokens)


def ids_of(tokens, row: int = 0) -> list[int]:
    return [token.id for token in tokens if token.row == row]
