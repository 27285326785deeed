"""Where tests of Triton kernels run: on a GPU, or on a CPU in Triton's interpreter (TRITON_INTERPRET=1)."""

import importlib.util
import os
from importlib.metadata import version

import pytest
import torch

HAS_TRITON = importlib.util.find_spec("triton") is not None
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if IS_INTERPRETED else "cuda"
INTERPRETER_WORKS = HAS_TRITON and int(version("triton").split(".")[1]) >= 7  # 3.6's fails with NumPy 2.4
needs_triton = pytest.mark.skipif(
    not (INTERPRETER_WORKS if IS_INTERPRETED else HAS_TRITON and torch.cuda.is_available()),
    reason="needs Triton and a GPU, or Triton 3.7 and TRITON_INTERPRET=1",
)
