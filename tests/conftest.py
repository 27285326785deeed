"""Two workers share two cores: one thread each, or they fight. Seeds are fixed; hypothesis draws the same examples."""

import os

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("headway", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("headway")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """Prepared tokens go to a place of their own, also in the commands that tests start."""
    os.environ["HEADWAY_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
