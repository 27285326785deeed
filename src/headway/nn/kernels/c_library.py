"""C files of this package as libraries: compiled at the first use by the system's compiler, and kept in the cache."""

import ctypes
import hashlib
import os
import platform
import stat
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from headway.compilers import c_compiler
from headway.files import cache_folder, file_digest

FLAGS = ("-O3", "-fopenmp", "-shared", "-fPIC")
ARCH_FLAGS = (("-march=native",), ())  # the instructions of this processor; not every compiler knows it
COMPILE_SECONDS = 60
DIGEST_LETTERS = 16
CPU_LINES = ("flags", "Features", "CPU implementer", "CPU part", "model name")  # of /proc/cpuinfo, on x86 and ARM


@cache
def load_c_library(name: str) -> ctypes.CDLL | str:
    """The library of the file `name` beside this one, or why there is none."""
    source, compiler = Path(__file__).with_name(name), c_compiler()
    try:
        folder = cache_folder() / "kernels"
        prefix = f"{source.stem}-{_digest(source, compiler)}"
        library = _cached_library(folder, prefix)
        if library is None:
            if compiler is None:
                return "no C compiler is found ($CC, cc, gcc or clang)"
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # whatever the umask: see _is_private
            library = _compile(compiler, source, folder, prefix)
            if library is None:
                return f"{compiler} cannot compile C code with OpenMP"
        if not _is_private(library):
            return f"others may write to {folder}: delete it, or set HEADWAY_CACHE to a folder of your own"
        return ctypes.CDLL(str(library))
    except subprocess.TimeoutExpired:
        return f"{compiler} did not finish within {COMPILE_SECONDS} s"
    except (OSError, ValueError) as error:
        return f"the compiled kernels cannot be kept or loaded ({error})"


def _cached_library(folder: Path, prefix: str) -> Path | None:
    """An earlier result of `_compile`, if it is whole: loading a damaged library would end the process. The end of its
    name is its digest."""
    for library in sorted(folder.glob(f"{prefix}-*.so")):
        if not library.is_file():
            continue
        if not _is_private(library):
            return library  # not even read: the caller refuses it
        if _content_digest(library) == library.stem.rpartition("-")[2]:
            return library
        library.unlink(missing_ok=True)
    return None


def _content_digest(library: Path) -> str:
    return file_digest(library)[:DIGEST_LETTERS]


def _digest(source: Path, compiler: str | None) -> str:
    """What a library depends on: a home folder may be shared by machines with other processors."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        cpu = "\n".join(sorted({line for line in lines if line.startswith(CPU_LINES)}))
    except OSError:
        cpu = platform.processor()
    parts = (source.read_text(encoding="utf-8"), platform.machine(), cpu, compiler or "", *FLAGS)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:DIGEST_LETTERS]


def _compile(compiler: str, source: Path, folder: Path, prefix: str) -> Path | None:
    """The new library; None if the compiler fails. Under a temporary name first, and written to the disk before it gets
    its own: two processes may compile at once, and either be killed."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        output = Path(temporary, "library.so")
        for arch_flags in ARCH_FLAGS:
            result = subprocess.run(
                [compiler, *FLAGS, *arch_flags, str(source), "-o", str(output), "-lm"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=COMPILE_SECONDS,
            )
            if result.returncode == 0:
                output.chmod(0o700)
                with open(output, "rb") as file:
                    os.fsync(file.fileno())
                return output.replace(folder / f"{prefix}-{_content_digest(output)}.so")
    return None


def _is_private(library: Path) -> bool:
    """Whether nobody else can have written it: loading a library runs its code."""
    return all(
        info.st_uid == os.getuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        for info in (library.lstat(), library.parent.stat())
    )
