"""Two workers share two cores: each uses one thread, as do the commands that tests start. Seeds are fixed, those of
hypothesis too."""

import gc
import os
import signal

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = os.environ["RAYON_NUM_THREADS"] = "1"  # of commands, and of the tokenizers here
os.fsync = lambda handle: None  # slow, and of no effect without a power cut
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run on the CPU; Triton reads it when it is imported
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with Ctrl-C ignored
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and nohup with SIGHUP ignored
settings.register_profile("headway", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("headway")

# A worker takes whole files (--dist loadfile), so that module fixtures are made once. The slowest files come first, or
# one worker would idle at the end.
SLOW_FILES = [
    "test_distributed.py",
    "test_pages.py",
    "test_help.py",
    "test_typing.py",
    "test_sweep.py",
    "test_signals.py",
    "test_resume.py",
    "test_triton_compile.py",
    "test_plugins.py",
    "test_examples.py",
    "test_compare.py",
    "test_encoders.py",
    "test_worker_plugins.py",
    "test_trainer.py",
]


def pytest_collection_modifyitems(items):
    def rank(item):
        return SLOW_FILES.index(item.path.name) if item.path.name in SLOW_FILES else len(SLOW_FILES)

    items.sort(key=rank)


def pytest_collection_finish():
    """What the imports left stays: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _temporary_token_cache(tmp_path_factory):
    """Prepared tokens go to a temporary folder, also in the commands that tests start."""
    os.environ["HEADWAY_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def workspace(tmp_path_factory):
    """A folder with small runs, tokenizers and texts, made once per session. Copy it before you change it."""
    from tests.cli.conftest import make_workspace

    return make_workspace(tmp_path_factory.mktemp("workspace"))


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)
