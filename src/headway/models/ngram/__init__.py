"""n-gram models: counting (counts), smoothing, lookup (model, hash_index), and ARPA and count files.

`NGram` is the model, with the contract of every other one. `count_ngrams` and `SMOOTHINGS` are the two halves of its
training; `read_arpa`, `write_arpa`, `read_counts` and `write_counts` exchange n-grams with other toolkits.
"""

from headway.models.ngram.arpa import read_arpa, write_arpa
from headway.models.ngram.count_files import read_counts, write_counts
from headway.models.ngram.counts import Counts, count_ngrams
from headway.models.ngram.model import NGram
from headway.models.ngram.smoothing import SMOOTHINGS, NgramProbs

__all__ = [
    "SMOOTHINGS",
    "Counts",
    "NGram",
    "NgramProbs",
    "count_ngrams",
    "read_arpa",
    "read_counts",
    "write_arpa",
    "write_counts",
]
