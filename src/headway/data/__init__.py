"""Data: corpora (`CORPORA` are built in), generated tasks (`TASKS`), and batches."""

from headway.data.corpora import CORPORA, Split, load_documents, load_split, locate, read_text, split
from headway.data.tasks import TASKS, pairs
from headway.data.windows import consecutive_windows, random_windows

__all__ = [
    "CORPORA",
    "TASKS",
    "Split",
    "consecutive_windows",
    "load_documents",
    "load_split",
    "locate",
    "pairs",
    "random_windows",
    "read_text",
    "split",
]
