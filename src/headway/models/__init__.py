"""The models, one idea per file; `MODELS` maps family names to classes."""

from headway.models.adapter import language_model
from headway.models.bag_of_words import BagOfWords
from headway.models.bahdanau import Bahdanau
from headway.models.base import LanguageModel, Model
from headway.models.bert import BERT, MaskedLM
from headway.models.bilstm import BiLSTM
from headway.models.gpt import GPT
from headway.models.heads import Classifier, SpanReader, Tagger
from headway.models.ngram.model import NGram
from headway.models.nplm import NPLM
from headway.models.registry import MODELS, create
from headway.models.rnn import RNN
from headway.models.seq2seq import Seq2Seq
from headway.models.serialization import find_model, load
from headway.models.transformer import Transformer
from headway.models.uncached import UncachedLM

__all__ = [
    "BERT",
    "GPT",
    "MODELS",
    "NPLM",
    "RNN",
    "BagOfWords",
    "Bahdanau",
    "BiLSTM",
    "Classifier",
    "LanguageModel",
    "MaskedLM",
    "Model",
    "NGram",
    "Seq2Seq",
    "SpanReader",
    "Tagger",
    "Transformer",
    "UncachedLM",
    "create",
    "find_model",
    "language_model",
    "load",
]
