"""Where tests of Triton kernels run: on a GPU, or on a CPU in Triton's interpreter (TRITON_INTERPRET=1)."""

import importlib.util
import os

import pytest
import torch

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if IS_INTERPRETED else "cuda"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or not (IS_INTERPRETED or torch.cuda.is_available()),
    reason="needs Triton, and a GPU or TRITON_INTERPRET=1",
)
