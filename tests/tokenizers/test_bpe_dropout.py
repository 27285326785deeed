"""BPE-dropout: other pieces, the same text; nothing left out is the tokenizer's own."""

import numpy as np
import pytest
import tokenizers as rust
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.tokenizers import Tokenizer, train
from headway.tokenizers.bpe_dropout import WAYS, BPEDropout

TEXTS = ["the cat sat on the mat", "the dogs sat where the cats had sat", "Zwei Männer sitzen auf der Matte."] * 4
BPE = train("bpe", TEXTS, 400)


def spell(spellings, text, uniform):
    words = np.array(spellings.numbers(text))
    return spellings.spell([words], np.full(len(words), uniform))[0]


@given(st.text(max_size=40), st.floats(0, 0.999))
def test_every_spelling_is_of_the_same_text(text, uniform):
    assert BPE.decode(spell(BPEDropout(BPE, 0.3), text, uniform)) == text


@given(st.text(max_size=40))
def test_with_nothing_left_out_it_is_the_tokenizer(text):
    assert spell(BPEDropout(BPE, 0.0), text, 0.5) == BPE.encode(text)


def test_a_word_comes_in_many_ways_and_each_is_always_the_same():
    spellings = BPEDropout(BPE, 0.2)
    ways = [tuple(spell(spellings, " sitzen", (k + 0.5) / WAYS)) for k in range(WAYS)]
    assert len(set(ways)) > 2
    assert tuple(BPE.encode(" sitzen")) in ways
    again = BPEDropout(BPE, 0.2)
    assert ways == [tuple(spell(again, " sitzen", (k + 0.5) / WAYS)) for k in range(WAYS)]
    assert max(map(len, ways)) <= len(" sitzen")


def test_what_is_not_byte_level_is_refused():
    marked = rust.Tokenizer(rust.models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    marked.pre_tokenizer = rust.pre_tokenizers.Whitespace()
    marked.train_from_iterator(TEXTS, rust.trainers.BpeTrainer(vocab_size=60, end_of_word_suffix="</w>"))
    for tokenizer in (train("char", TEXTS), Tokenizer(marked)):
        with pytest.raises(ConfigError, match="leaves out merges of a byte-level BPE"):
            BPEDropout(tokenizer, 0.1)
