"""Which tokens continue a word, in every kind of vocabulary."""

import pytest

from headway import tokenizers
from headway.errors import ConfigError
from headway.tokenizers.word_starts import continues_word

TEXT = ["walking talkers talk, and walkers walk"] * 5


def words(tokenizer, text):
    """The tokens of a text, grouped into words."""
    grouped, continues = [], continues_word(tokenizer)
    for id in tokenizer.encode(text):
        if grouped and continues[id]:
            grouped[-1].append(tokenizer.token(id))
        else:
            grouped.append([tokenizer.token(id)])
    return ["".join(tokens) for tokens in grouped]


def test_wordpiece_marks_what_continues_a_word():
    tokenizer = tokenizers.train("wordpiece", TEXT, 40)
    grouped = [word.replace("##", "") for word in words(tokenizer, "Talking walkers, and talk")]
    assert grouped == ["talking", "walkers", ",", "and", "talk"]
    assert not continues_word(tokenizer)[list(tokenizer.special_ids.values())].any()


def test_byte_level_bpe_marks_what_starts_one():
    tokenizer = tokenizers.train("bpe", TEXT, 270)
    assert words(tokenizer, "talking walkers, and talk") == ["talking", "Ġwalkers,", "Ġand", "Ġtalk"]


def test_every_token_of_a_word_tokenizer_is_a_word():
    tokenizer = tokenizers.train("word", TEXT)
    assert not continues_word(tokenizer).any()


def test_characters_do_not_show_words():
    with pytest.raises(ConfigError, match=r"shows where a word starts.*set train\.whole_word_masking=false"):
        continues_word(tokenizers.train("char", TEXT))
