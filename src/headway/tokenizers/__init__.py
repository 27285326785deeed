"""Tokenizers: one interface (`Tokenizer`), several kinds (`KINDS`), `tokenizer.json` on disk."""

from headway.tokenizers.base import Encoding, Tokenizer
from headway.tokenizers.bpe import train_bpe
from headway.tokenizers.char import train_char
from headway.tokenizers.factory import KINDS, train
from headway.tokenizers.loading import load_tokenizer
from headway.tokenizers.pre_tokenizers import PATTERNS
from headway.tokenizers.sentencepiece import load_sentencepiece
from headway.tokenizers.unigram import train_unigram
from headway.tokenizers.word import train_word
from headway.tokenizers.wordpiece import train_wordpiece

__all__ = [
    "KINDS",
    "PATTERNS",
    "Encoding",
    "Tokenizer",
    "load_sentencepiece",
    "load_tokenizer",
    "train",
    "train_bpe",
    "train_char",
    "train_unigram",
    "train_word",
    "train_wordpiece",
]
