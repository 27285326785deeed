"""BPE-dropout: other segmentations of the same text; with dropout 0, the tokenizer's own."""

import numpy as np
import pytest
import tokenizers as rust
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.tokenizers import Tokenizer, train
from headway.tokenizers.bpe_dropout import SEGMENTATIONS_PER_WORD, BPEDropout

TEXTS = ["the cat sat on the mat", "the dogs sat where the cats had sat", "Zwei Männer sitzen auf der Matte."] * 4
BPE = train("bpe", TEXTS, 400)
WITHOUT_DROPOUT, WITH_DROPOUT = BPEDropout(BPE, 0.0), BPEDropout(BPE, 0.3)


def encode(bpe_dropout, text, uniform):
    words = np.array(bpe_dropout.word_ids(text))
    return bpe_dropout.encode([words], np.full(len(words), uniform))[0]


@given(st.text(max_size=40), st.floats(0, 0.999))
@settings(max_examples=50)
def test_every_segmentation_decodes_to_the_text(text, uniform):
    assert BPE.decode(encode(WITH_DROPOUT, text, uniform)) == text


@given(st.text(max_size=40))
@settings(max_examples=50)
def test_without_dropout_the_ids_are_those_of_the_tokenizer(text):
    assert encode(WITHOUT_DROPOUT, text, 0.5) == BPE.encode(text)


def test_a_word_has_several_segmentations_fixed_by_the_seed():
    uniforms = [(k + 0.5) / SEGMENTATIONS_PER_WORD for k in range(SEGMENTATIONS_PER_WORD)]
    segmentations, repeated = (
        [tuple(encode(bpe_dropout, " sitzen", uniform)) for uniform in uniforms]
        for bpe_dropout in (BPEDropout(BPE, 0.2), BPEDropout(BPE, 0.2))
    )
    assert len(set(segmentations)) > 2
    assert tuple(BPE.encode(" sitzen")) in segmentations
    assert segmentations == repeated
    assert max(map(len, segmentations)) <= len(" sitzen")


def test_tokenizers_other_than_byte_level_bpe_are_refused():
    with_suffix = rust.Tokenizer(rust.models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    with_suffix.pre_tokenizer = rust.pre_tokenizers.Whitespace()
    with_suffix.train_from_iterator(TEXTS, rust.trainers.BpeTrainer(vocab_size=60, end_of_word_suffix="</w>"))
    for tokenizer in (train("char", TEXTS), Tokenizer(with_suffix)):
        with pytest.raises(ConfigError, match=r"tokenizer\.bpe_dropout=0\.1 needs a byte-level BPE tokenizer"):
            BPEDropout(tokenizer, 0.1)
