"""Undo what a test registers: every table that `headway.register` writes to is put back."""

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from headway import plugins
from headway.config import FAMILIES
from headway.config.choices import BASE_OBJECTIVES, CHOICES
from headway.data.builtin import CORPORA, CORPUS_KINDS
from headway.data.readers import ENDINGS, READER_KINDS, READERS
from headway.entry_points import declared
from headway.evaluation.metrics import METRICS
from headway.models import MODELS
from headway.nn.attention import ATTENTIONS
from headway.sampling.samplers import SAMPLERS
from headway.sampling.specs import FLAT_NAMES, ORDER_PRESETS, SAMPLER_SPECS
from headway.tokenizers.factory import KINDS
from headway.training.objectives import OBJECTIVES
from headway.training.optimizers import OPTIMIZERS

TABLES = [
    FAMILIES, MODELS, BASE_OBJECTIVES, CORPORA, CORPUS_KINDS, ENDINGS, READER_KINDS, READERS, METRICS, ATTENTIONS,
    SAMPLERS, FLAT_NAMES, SAMPLER_SPECS, KINDS, OBJECTIVES, OPTIMIZERS,
]  # fmt: skip
LISTS = [CHOICES, ORDER_PRESETS]
TEST_MODULES = ("headway_extend", "mine", "yours", "contract_plugin")


@contextmanager
def restored_registries() -> Iterator[None]:
    tables, lists = [dict(table) for table in TABLES], [copy.deepcopy(table) for table in LISTS]
    registered, modules, path = set(plugins.REGISTERED), set(sys.modules), list(sys.path)
    declared.cache_clear()
    try:
        yield
    finally:
        for table, old in zip(TABLES, tables, strict=True):
            table.clear()
            table.update(old)
        for table, old in zip(LISTS, lists, strict=True):
            for name, values in old.items():
                table[name][:] = values
        plugins.REGISTERED.clear()
        plugins.REGISTERED.update(registered)
        for name in set(sys.modules) - modules:
            if name.partition(".")[0] in TEST_MODULES or name.startswith("headway_plugin_"):
                del sys.modules[name]
        sys.path[:] = path
        declared.cache_clear()
