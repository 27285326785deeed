"""Compiling a C file of the package at its first use, and doing without."""

import ctypes
import os
import shutil

import pytest

from headway.compilers import c_compiler
from headway.nn.kernels import c_library
from headway.nn.kernels.c_library import load_c_library

NAME = "cpu_decode.c"
needs_compiler = pytest.mark.skipif(c_compiler() is None, reason="needs a C compiler")


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """The folder of libraries in an empty cache."""
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    load_c_library.cache_clear()
    yield tmp_path / "kernels"
    load_c_library.cache_clear()


def compile_again(monkeypatch, **environment):
    load_c_library.cache_clear()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return load_c_library(NAME)


@needs_compiler
def test_a_library_is_compiled_once(kernels, monkeypatch):
    assert isinstance(load_c_library(NAME), ctypes.CDLL)
    (library,) = kernels.iterdir()  # and nothing temporary is left
    written = library.stat().st_mtime_ns
    assert isinstance(compile_again(monkeypatch), ctypes.CDLL)
    assert [file.stat().st_mtime_ns for file in kernels.iterdir()] == [written]


@needs_compiler
def test_other_sources_or_processors_get_a_library_of_their_own(kernels, monkeypatch):
    load_c_library(NAME)
    monkeypatch.setattr(c_library, "FLAGS", (*c_library.FLAGS, "-g0"))
    compile_again(monkeypatch)
    assert len(list(kernels.iterdir())) == 2


@needs_compiler
@pytest.mark.parametrize("damage", ["cut short", "zeros at its end"])
def test_a_damaged_library_is_compiled_again(damage, kernels, monkeypatch):
    """Loading it would end the process."""
    load_c_library(NAME)
    (library,) = kernels.iterdir()
    whole = library.read_bytes()
    damaged = {"cut short": whole[:5000], "zeros at its end": whole[:9000] + bytes(len(whole) - 9000)}
    library.unlink()  # not overwritten: this process has it in its memory
    library.write_bytes(damaged[damage])
    assert isinstance(compile_again(monkeypatch), ctypes.CDLL)
    assert [file.read_bytes() for file in kernels.iterdir()] == [whole]


@pytest.mark.parametrize("line", ["flags\t\t: fpu avx2", "Features\t: fp asimd sve", "CPU part\t: 0xd40"])
def test_each_kind_of_processor_has_a_library_of_its_own(line, tmp_path, monkeypatch):
    digests = set()
    for text in (f"processor\t: 0\n{line}\n", f"processor\t: 0\n{line} more\n"):
        monkeypatch.setattr(c_library.Path, "read_text", lambda path, text=text, **options: text)
        digests.add(c_library._digest(tmp_path / NAME, "cc"))
    assert len(digests) == 2


@pytest.mark.parametrize("compiler", ["/bin/false", "/does/not/exist"])
def test_without_a_working_compiler_there_is_no_library(compiler, kernels, monkeypatch):
    monkeypatch.setattr(c_library, "c_compiler", lambda: compiler)
    assert compiler in load_c_library(NAME)
    assert list(kernels.iterdir()) == []


def test_without_any_compiler_there_is_no_library(kernels, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "no C compiler" in load_c_library(NAME)


def test_a_cache_that_cannot_be_written_gives_no_library(kernels, monkeypatch):
    kernels.write_text("a file")
    assert "cannot be kept" in load_c_library(NAME)


@needs_compiler
def test_an_older_compiler_that_does_not_know_the_processor_will_do(kernels, monkeypatch):
    monkeypatch.setattr(c_library, "ARCH_FLAGS", (("-march=no-such-processor",), ()))
    assert isinstance(load_c_library(NAME), ctypes.CDLL)


@needs_compiler
def test_a_library_that_others_may_have_written_is_not_loaded(kernels, monkeypatch):
    load_c_library(NAME)
    (library,) = kernels.iterdir()
    library.chmod(0o722)
    assert f"others may write to {kernels}: delete it" in compile_again(monkeypatch)
    library.chmod(0o700)
    kernels.chmod(0o777)
    assert f"others may write to {kernels}: delete it" in compile_again(monkeypatch)
    kernels.chmod(0o755)
    assert isinstance(compile_again(monkeypatch), ctypes.CDLL)


@needs_compiler
def test_a_umask_that_lets_a_group_write_does_not_matter(kernels):
    before = os.umask(0o002)
    try:
        assert isinstance(load_c_library(NAME), ctypes.CDLL)
    finally:
        os.umask(before)
    assert kernels.stat().st_mode & 0o777 == 0o700
