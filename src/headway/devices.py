"""Devices and precisions by name, as flags, recipes and calls give them."""

from contextlib import AbstractContextManager

import torch

from headway.errors import ConfigError, InputError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def parse_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """A precision by name; "auto", like None, leaves it as it is."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return None
    if dtype not in DTYPES:
        raise ConfigError(f"dtype={dtype!r} is not one of {', '.join(DTYPES)}")
    return DTYPES[dtype]


def parse_device(device: str | torch.device) -> torch.device:
    """A device by name; "auto" is CUDA where there is one."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError):
        raise ConfigError(f"device={device!r} is no device; try cpu, cuda or cuda:1") from None
    if place.type == "meta":
        raise ConfigError("device='meta' holds no numbers: create() takes it, nothing else does")
    try:
        torch.zeros((), device=place)
    except (RuntimeError, AssertionError):  # a build without CUDA says so by an assertion
        raise InputError(f"device={str(device)!r}: this PyTorch has no such device; use --device cpu") from None
    return place


def product_precision(device: torch.device, dtype: str) -> str:
    """That of matrix products; weights are float32 always."""
    return ("bfloat16" if device.type == "cuda" else "float32") if dtype == "auto" else dtype


def varying_shapes() -> AbstractContextManager[None]:
    """Attention for shapes that seldom come twice. cuDNN's, the fastest on a Hopper, makes a plan for every new shape,
    which takes 15 ms a layer; batches of sentences and growing texts hardly repeat one. The others need none."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
