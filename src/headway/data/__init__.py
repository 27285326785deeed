"""Data: sources, splits, token shards, datasets, samplers and the data loader; `CORPORA` and `TASKS` are built in.

Names load on first use: reading and preparing text does not import torch, batches do.
"""

# ruff: noqa: F401 (the imports are for type checkers)

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
        "token_shards": "PreparedCorpus TokenArray cache_folder open_prepared prepare prepare_recipe",
        "synthetic_tasks": "TASKS pairs",
        "sampler": "TokenBudgetBatchSampler BatchSampler",
        "loader": "IGNORE_INDEX BatchLoader CausalBatch RngKey prefetch",
        "datasets.causal": "MixtureDataset PackedDataset CausalDataset consecutive_windows",
        "datasets.mlm": "MLMBatch MLMDataset mask_tokens",
        "datasets.seq2seq": "Seq2SeqBatch Seq2SeqDataset",
        "datasets.labeled": "LabelBatch ClassificationDataset SpanBatch SpanDataset TagBatch TaggingDataset",
        "statistics": "DataSummary summarize",
    }.items()
    for name in names.split()
}
__all__ = sorted(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from headway.data.builtin import CORPORA
    from headway.data.datasets.causal import CausalDataset, MixtureDataset, PackedDataset, consecutive_windows
    from headway.data.datasets.labeled import (
        ClassificationDataset,
        LabelBatch,
        SpanBatch,
        SpanDataset,
        TagBatch,
        TaggingDataset,
    )
    from headway.data.datasets.mlm import MLMBatch, MLMDataset, mask_tokens
    from headway.data.datasets.seq2seq import Seq2SeqBatch, Seq2SeqDataset
    from headway.data.loader import IGNORE_INDEX, BatchLoader, CausalBatch, RngKey, prefetch
    from headway.data.records import Answer, LabelledText, Pair, Question, Record, TaggedSentence
    from headway.data.sampler import BatchSampler, TokenBudgetBatchSampler
    from headway.data.sources import DataSource, locate, open_source
    from headway.data.splits import Split, SplitFractions, load_documents, read_split, split, split_records
    from headway.data.statistics import DataSummary, summarize
    from headway.data.synthetic_tasks import TASKS, pairs
    from headway.data.token_shards import (
        PreparedCorpus,
        TokenArray,
        cache_folder,
        open_prepared,
        prepare,
        prepare_recipe,
    )


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'headway.data' has no attribute {name!r}")
