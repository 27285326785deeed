"""The words of an n-gram model, in the files of other programs: <s>, </s> and <unk> are theirs to name."""

import re
from collections.abc import Iterable

from headway.errors import InputError
from headway.models.ngram.model import NGram
from headway.tokenizers import Tokenizer
from headway.tokenizers.pre_tokenizers import WORDS
from headway.tokenizers.special_tokens import SENTENCE
from headway.tokenizers.word import sentence_words

UNKNOWN, BEGIN, END = SENTENCE
_WORD = re.compile(WORDS["whitespace"])


def spelled(model: NGram) -> tuple[list[str], dict[str, str]]:
    """How each token is written, and which words of the text had to be named otherwise: a word that is spelled like a
    special token, such as Penn Treebank's <unk>, becomes UNK."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        names = [str(id) for id in range(model.config.vocab_size)]
        special = {model.config.bos_id: BEGIN, model.config.eos_id: END}
    else:
        names = [tokenizer.token(id) for id in range(model.config.vocab_size)]
        special = {tokenizer.unk_id: UNKNOWN, tokenizer.bos_id: BEGIN, tokenizer.eos_id: END}
    renamed: dict[str, str] = {}
    taken = set(names)
    for id, name in enumerate(names):
        if id in special:
            names[id] = special[id]
        elif name in SENTENCE:
            other = name.strip("</>").upper()
            while other in taken:
                other += "_"
            taken.add(other)
            names[id] = renamed[name] = other
        elif not _WORD.fullmatch(name):
            raise InputError(
                f"token {id}, {name!r}, is empty or has a blank in it, which this format cannot hold: words cut by "
                f"tokenizer.pre_tokenizer='whitespace' have none"
            )
    return names, renamed


def words_of(line: str) -> list[str]:
    """Words between blanks, which are fewer than what Python calls space."""
    return _WORD.findall(line)


def tokenizer_for(words: Iterable[str]) -> Tokenizer:
    """One that knows these words, and the three special ones."""
    return sentence_words(list(dict.fromkeys(word for word in words if word not in SENTENCE)), list(SENTENCE))
