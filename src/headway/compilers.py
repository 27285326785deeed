"""What can compile kernels on this machine: the system's C compiler, and Triton, which needs one at its first use.

Installing Headway builds nothing. Where there is no compiler, callers use PyTorch's operations.
"""

import os
import shutil
import warnings
from functools import cache
from importlib.util import find_spec

import torch


def c_compiler() -> str | None:
    """The path of $CC, cc, gcc or clang."""
    return next(filter(None, map(shutil.which, (os.environ.get("CC") or "cc", "cc", "gcc", "clang"))), None)


@torch.compiler.assume_constant_result  # torch.compile cannot trace the trial
def triton_works(device: torch.device) -> bool:
    """Whether Triton can compile kernels for this GPU; if not, a warning says why, once."""
    reason = why_no_triton(device)
    if reason is not None:
        warn_of_slow_path(reason)
    return reason is None


@cache
def why_no_triton(device: torch.device) -> str | None:
    """Why Triton cannot compile kernels for this GPU, by trying a small one; None if it can."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if c_compiler() is None:
        return "Triton needs a C compiler ($CC, cc, gcc or clang)"
    try:
        with torch.cuda.device(device):
            run_trial_kernel(device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of Triton, the compiler, the linker or the file system
        return f"Triton cannot compile kernels ({type(error).__name__}: {str(error).strip()[:200]})"
    return None


def run_trial_kernel(device: torch.device | str) -> None:
    import triton
    import triton.language as tl

    @triton.jit
    def _add_one(x, N: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton compiles annotations too
        columns = tl.arange(0, N)
        tl.store(x + columns, tl.load(x + columns) + 1.0)

    _add_one[(1,)](torch.zeros(16, device=device), N=16)


@cache
def warn_of_slow_path(reason: str) -> None:
    """One warning for each reason."""
    warnings.warn(f"{reason}, so PyTorch's operations are used, which is slower", stacklevel=2)
