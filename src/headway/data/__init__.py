"""Data: sources, splits, token shards, datasets, samplers and the data loader; `CORPORA` and `TASKS` are built in.

Names load on first use: reading and preparing text does not import torch, batches do.
"""

from importlib import import_module
from typing import TYPE_CHECKING

# Public name → the module that defines it.
_PUBLIC = {
    name: f"headway.data.{module}"
    for module, names in {
        "builtin": "CORPORA",
        "records": "Answer LabelledText Pair Question Record TaggedSentence",
        "sources": "DataSource locate open_source",
        "splits": "SplitFractions Split load_documents read_split split split_records",
        "token_cache": "cache_folder",
        "token_shards": "PreparedCorpus TokenArray open_prepared prepare prepare_recipe",
        "synthetic_tasks": "TASKS pairs",
        "sampler": "TokenBudgetBatchSampler BatchSampler",
        "loader": "IGNORE_INDEX BatchLoader CausalBatch RngKey prefetch",
        "datasets.causal": "MixtureDataset PackedDataset CausalDataset consecutive_windows",
        "datasets.mlm": "MLMBatch MLMDataset mask_tokens",
        "datasets.seq2seq": "Seq2SeqBatch Seq2SeqDataset",
        "datasets.classification": "LabelBatch ClassificationDataset",
        "datasets.tagging": "TagBatch TaggingDataset",
        "datasets.spans": "SpanBatch SpanDataset",
        "statistics": "DataSummary summarize",
    }.items()
    for name in names.split()
}
__all__ = sorted(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from headway.data.builtin import CORPORA as CORPORA
    from headway.data.datasets.causal import CausalDataset as CausalDataset
    from headway.data.datasets.causal import MixtureDataset as MixtureDataset
    from headway.data.datasets.causal import PackedDataset as PackedDataset
    from headway.data.datasets.causal import consecutive_windows as consecutive_windows
    from headway.data.datasets.classification import ClassificationDataset as ClassificationDataset
    from headway.data.datasets.classification import LabelBatch as LabelBatch
    from headway.data.datasets.mlm import MLMBatch as MLMBatch
    from headway.data.datasets.mlm import MLMDataset as MLMDataset
    from headway.data.datasets.mlm import mask_tokens as mask_tokens
    from headway.data.datasets.seq2seq import Seq2SeqBatch as Seq2SeqBatch
    from headway.data.datasets.seq2seq import Seq2SeqDataset as Seq2SeqDataset
    from headway.data.datasets.spans import SpanBatch as SpanBatch
    from headway.data.datasets.spans import SpanDataset as SpanDataset
    from headway.data.datasets.tagging import TagBatch as TagBatch
    from headway.data.datasets.tagging import TaggingDataset as TaggingDataset
    from headway.data.loader import IGNORE_INDEX as IGNORE_INDEX
    from headway.data.loader import BatchLoader as BatchLoader
    from headway.data.loader import CausalBatch as CausalBatch
    from headway.data.loader import RngKey as RngKey
    from headway.data.loader import prefetch as prefetch
    from headway.data.records import Answer as Answer
    from headway.data.records import LabelledText as LabelledText
    from headway.data.records import Pair as Pair
    from headway.data.records import Question as Question
    from headway.data.records import Record as Record
    from headway.data.records import TaggedSentence as TaggedSentence
    from headway.data.sampler import BatchSampler as BatchSampler
    from headway.data.sampler import TokenBudgetBatchSampler as TokenBudgetBatchSampler
    from headway.data.sources import DataSource as DataSource
    from headway.data.sources import locate as locate
    from headway.data.sources import open_source as open_source
    from headway.data.splits import Split as Split
    from headway.data.splits import SplitFractions as SplitFractions
    from headway.data.splits import load_documents as load_documents
    from headway.data.splits import read_split as read_split
    from headway.data.splits import split as split
    from headway.data.splits import split_records as split_records
    from headway.data.statistics import DataSummary as DataSummary
    from headway.data.statistics import summarize as summarize
    from headway.data.synthetic_tasks import TASKS as TASKS
    from headway.data.synthetic_tasks import pairs as pairs
    from headway.data.token_cache import cache_folder as cache_folder
    from headway.data.token_shards import PreparedCorpus as PreparedCorpus
    from headway.data.token_shards import TokenArray as TokenArray
    from headway.data.token_shards import open_prepared as open_prepared
    from headway.data.token_shards import prepare as prepare
    from headway.data.token_shards import prepare_recipe as prepare_recipe
else:  # hidden from type checkers, for which a misspelt name would otherwise be any object

    def __getattr__(name: str) -> object:
        if name in _PUBLIC:
            return getattr(import_module(_PUBLIC[name]), name)
        raise AttributeError(f"module 'headway.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
