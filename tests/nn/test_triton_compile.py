"""Every Triton kernel compiles for a GPU, here without one; the interpreter of test_decode_kernels.py does not tell."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headway
from tests.triton_tests import HAS_TRITON

ROOT = Path(__file__).parents[2]
MAX_SHARED_BYTES = 232_448  # of a program on an H200 (CUDA C++ Programming Guide, compute capability 9.0)


@pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")
def test_every_kernel_compiles_for_an_h200(tmp_path):
    sources = [file.read_text(encoding="utf-8") for file in Path(headway.__file__).parent.rglob("*.py")]
    launched = {name for text in sources for name in re.findall(r"^ +(_\w+)\[\(.*\)\]\(", text, re.MULTILINE)}
    assert len(launched) >= 10
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    result = subprocess.run(
        [sys.executable, "-m", "tests.triton_compile"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    shared_bytes = json.loads(result.stdout)
    assert set(shared_bytes) == launched
    assert max(shared_bytes.values()) <= MAX_SHARED_BYTES
