"""The words of an n-gram model in the files of other toolkits, where <s>, </s> and <unk> are reserved."""

import re
from collections.abc import Iterable

from headway.errors import InputError
from headway.models.base import tokenizer_of
from headway.models.ngram.model import NGram
from headway.tokenizers import Tokenizer
from headway.tokenizers.pre_tokenizers import WORD_PATTERNS
from headway.tokenizers.special_tokens import SENTENCE_TOKENS
from headway.tokenizers.word import sentence_tokenizer

UNK, BOS, EOS = SENTENCE_TOKENS
_WORD = re.compile(WORD_PATTERNS["whitespace"])


def spell_vocabulary(model: NGram) -> tuple[list[str], dict[str, str]]:
    """The word written for each token, and the words that had to be renamed.

    A word of the text that is spelled like a special token is renamed: Penn Treebank's <unk> becomes UNK.
    """
    tokenizer = tokenizer_of(model)
    if tokenizer is None:
        words = [str(id) for id in range(model.config.vocab_size)]
        special = {model.config.bos_id: BOS, model.config.eos_id: EOS}
    else:
        words = [tokenizer.token(id) for id in range(model.config.vocab_size)]
        special = {tokenizer.unk_id: UNK, tokenizer.bos_id: BOS, tokenizer.eos_id: EOS}
    renamed: dict[str, str] = {}
    taken = set(words)
    for id, word in enumerate(words):
        if id in special:
            words[id] = special[id]
        elif word in SENTENCE_TOKENS:
            new_word = word.strip("</>").upper()
            while new_word in taken:
                new_word += "_"
            taken.add(new_word)
            words[id] = renamed[word] = new_word
        elif not _WORD.fullmatch(word):
            raise InputError(
                f"token {id}, {word!r}, is empty or contains a blank, which separates words in this format: "
                f"train the tokenizer with tokenizer.pre_tokenizer='whitespace'"
            )
    return words, renamed


def split_words(line: str) -> list[str]:
    """Split at blanks (the tokenizer's "whitespace"), which are fewer characters than `str.split` splits at."""
    return _WORD.findall(line)


def tokenizer_for(words: Iterable[str]) -> Tokenizer:
    """A tokenizer whose vocabulary is these words and the three special tokens."""
    vocab = list(dict.fromkeys(word for word in words if word not in SENTENCE_TOKENS))
    return sentence_tokenizer(vocab, list(SENTENCE_TOKENS))
