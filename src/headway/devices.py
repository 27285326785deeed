"""Parse devices and dtypes by name."""

from contextlib import AbstractContextManager, nullcontext

import torch

from headway.errors import ConfigError, InputError, suggest

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def parse_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """A dtype by name; "auto" and None leave the model's dtype unchanged."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return None
    if dtype not in DTYPES:
        raise ConfigError(f"dtype={dtype!r} is not one of {', '.join(DTYPES)}.{suggest(str(dtype), DTYPES)}")
    return DTYPES[dtype]


def parse_device(device: str | torch.device) -> torch.device:
    """A device by name; "auto" is CUDA if available."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError):
        raise ConfigError(f"device={device!r} is not a device; try cpu, cuda or cuda:1") from None
    if parsed.type == "meta":
        raise ConfigError("device='meta' stores no data: only headway.create accepts it")
    try:
        torch.zeros((), device=parsed)
    except (RuntimeError, AssertionError):  # a CPU build raises an AssertionError
        raise InputError(f"device={str(device)!r}: PyTorch finds no such device; use --device cpu") from None
    return parsed


def matmul_dtype(device: torch.device, dtype: str) -> str:
    """Dtype of matrix products under autocast; the weights stay float32."""
    return ("bfloat16" if device.type == "cuda" else "float32") if dtype == "auto" else dtype


def without_cudnn_attention(device: torch.device | None = None) -> AbstractContextManager[None]:
    """Exclude cuDNN attention on a GPU. It is the fastest on Hopper but builds a plan for every new shape (15 ms per
    layer), and batches of sentences and growing caches rarely repeat a shape. The other backends need no plan.

    Does nothing for other devices; without a device it always applies.
    """
    if device is not None and device.type != "cuda":
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
