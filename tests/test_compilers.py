"""Where kernels cannot be compiled, there is a reason and one warning, and the definitions are used."""

import contextlib
import shutil
import warnings

import pytest
import torch

from headway import compilers
from headway.compilers import c_compiler, triton_works, why_no_triton

GPU = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def _nothing_tried_before():
    for function in (compilers.why_no_triton, compilers.warn_of_slow_path):
        function.cache_clear()
    yield
    for function in (compilers.why_no_triton, compilers.warn_of_slow_path):
        function.cache_clear()


@pytest.fixture
def with_triton(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(compilers, "find_spec", lambda name: object())
    monkeypatch.setattr(compilers, "c_compiler", lambda: "/usr/bin/cc")


def test_without_any_compiler_there_is_none(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert c_compiler() is None


def test_triton_may_be_missing_or_have_no_compiler(monkeypatch):
    monkeypatch.setattr(compilers, "find_spec", lambda name: None)
    assert why_no_triton(GPU) == "Triton is not installed"
    why_no_triton.cache_clear()
    monkeypatch.setattr(compilers, "find_spec", lambda name: object())
    monkeypatch.setattr(compilers, "c_compiler", lambda: None)
    assert why_no_triton(GPU) == "Triton needs a C compiler ($CC, cc, gcc or clang)"


@pytest.mark.usefixtures("with_triton")
def test_a_compiler_that_fails_is_tried_once_and_warned_of_once(monkeypatch):
    devices = []

    def fail(device):
        devices.append(device)
        raise RuntimeError("ld: cannot find -lcuda")

    monkeypatch.setattr(compilers, "run_trial_kernel", fail)
    with pytest.warns(UserWarning, match="-lcuda.*so PyTorch's operations are used, which is slower"):
        assert not triton_works(GPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not triton_works(GPU)
    assert devices == [GPU]
    assert not triton_works(torch.device("cuda:1"))
    assert devices == [GPU, torch.device("cuda:1")]  # each has a trial of its own


@pytest.mark.usefixtures("with_triton")
def test_running_out_of_memory_says_nothing_about_triton(monkeypatch):
    def fail(device):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(compilers, "run_trial_kernel", fail)
    with pytest.raises(torch.OutOfMemoryError):
        why_no_triton(GPU)
    monkeypatch.setattr(compilers, "run_trial_kernel", lambda device: None)
    assert why_no_triton(GPU) is None
