"""Peak FLOP/s, memory bandwidth and memory of devices, from the vendors' datasheets. You can add your own.

    find_device("h200").bandwidth            4.8e12 bytes per second

`$HEADWAY_DEVICES` names a TOML file with more devices, by default ~/.config/headway/devices.toml:

    ["My GPU"]
    bfloat16 = 100e12       # FLOP/s of dense matrix products; float32 and float16 likewise
    bandwidth = 1e12        # bytes per second
    memory = 24e9           # bytes
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from headway.errors import ConfigError, suggest
from headway.file_reading import read_utf8

DEVICES_VARIABLE = "HEADWAY_DEVICES"
DEVICES_FILE = Path("~/.config/headway/devices.toml")
MAX_FILE_BYTES = 2**20
VENDORS = {"nvidia", "geforce", "amd", "instinct", "apple", "tesla"}  # words that may be left out
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}  # of an element
TERA, GIGA = 1e12, 1e9


@dataclass(frozen=True)
class DeviceSpec:
    name: str
    flops: Mapping[str, float] = field(default_factory=dict)  # dtype → FLOP/s of dense matrix products
    bandwidth: float = 0.0  # bytes per second, of the device's memory
    memory: float = 0.0  # bytes
    source: str = "datasheet"

    def peak(self, dtype: str) -> float | None:
        """FLOP/s in this dtype. float16 falls back to the rate of bfloat16, and vice versa."""
        same_rate = {"float16": "bfloat16", "bfloat16": "float16"}.get(dtype, dtype)
        return self.flops.get(dtype) or self.flops.get(same_rate)

    def ridge(self, dtype: str) -> float | None:
        """The arithmetic intensity (FLOPs per byte) from which on the peak FLOP/s, not the bandwidth, is the limit."""
        peak = self.peak(dtype)
        return peak / self.bandwidth if peak and self.bandwidth else None


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device of the user's file."""

    bandwidth: float
    memory: float
    bfloat16: float | None = None
    float16: float | None = None
    float32: float | None = None
    float64: float | None = None


def _spec(
    name: str, half_flops: float | None, float32: float, bandwidth: float, memory: float, *, half: str = "bfloat16"
) -> DeviceSpec:
    """TFLOP/s without sparsity in a 16-bit dtype (`half`) and in float32, not TF32; GB/s and GB."""
    flops = {} if half_flops is None else {half: half_flops * TERA}
    return DeviceSpec(name, flops | {"float32": float32 * TERA}, bandwidth * GIGA, memory * GIGA)


# A name matches a device whose name has all its words; the longest match wins.
DEVICES = {
    spec.name: spec
    for spec in (
        _spec("B200", 2250, 75, 8000, 180),
        _spec("H200", 989, 66.9, 4800, 141),
        _spec("H100", 989, 66.9, 3350, 80),
        _spec("H100 PCIe", 756, 51.2, 2000, 80),
        _spec("H100 NVL", 835, 60, 3900, 94),
        _spec("GH200", 989, 66.9, 4000, 96),
        _spec("A100", 312, 19.5, 2039, 80),
        _spec("A100 40GB", 312, 19.5, 1555, 40),
        _spec("A800", 312, 19.5, 2039, 80),
        _spec("A40", 149.7, 37.4, 696, 48),
        _spec("A30", 165, 10.3, 933, 24),
        _spec("A10", 125, 31.2, 600, 24),
        _spec("A10G", 70, 35, 600, 24),
        _spec("A6000", 154.8, 38.7, 768, 48),
        _spec("RTX 6000 Ada", 364, 91.1, 960, 48),
        _spec("L40S", 362, 91.6, 864, 48),
        _spec("L40", 181, 90.5, 864, 48),
        _spec("L4", 121, 30.3, 300, 24),
        _spec("T4", 65, 8.1, 320, 16, half="float16"),
        _spec("V100", 125, 15.7, 900, 32, half="float16"),
        _spec("RTX 3090", 71, 35.6, 936, 24),
        _spec("RTX 4090", 165, 82.6, 1008, 24),
        _spec("RTX 5090", 209.5, 104.8, 1792, 32),
        _spec("MI250X", 383, 95.7, 3277, 128),
        _spec("MI300X", 1307, 163.4, 5300, 192),
        # Apple gives one rate, and none since the M3; a chip's memory is the largest that is sold with it.
        _spec("M1", None, 2.6, 68, 16),
        _spec("M1 Pro", None, 5.2, 200, 32),
        _spec("M1 Max", None, 10.4, 400, 64),
        _spec("M1 Ultra", None, 21, 800, 128),
        _spec("M2", None, 3.6, 100, 24),
        _spec("M2 Pro", None, 6.8, 200, 32),
        _spec("M2 Max", None, 13.6, 400, 96),
        _spec("M2 Ultra", None, 27.2, 800, 192),
    )
}


def find_device(name: str) -> DeviceSpec:
    """A device of the table, or of your own file, by its name; case, "-", "_" and the vendor do not matter."""
    words = _words(name)
    matches = [spec for key, spec in all_devices().items() if _words(key) == words]
    if matches:
        return matches[-1]  # your own come last
    names = list(all_devices())
    others = f" There are {', '.join(names)}; docs/costs.md says how to add your own, in {DEVICES_FILE}"
    similar = match_device(name)
    hint = suggest(_normalized(name).upper(), names, otherwise=others)
    raise ConfigError(
        f"no device named {name!r}." + (hint if similar is None else f" Did you mean {similar.name!r}?"),
        setting="device",
    )


def match_device(name: str) -> DeviceSpec | None:
    """The device of which `name`, such as "NVIDIA A100-SXM4-80GB", has all words; None if there is none."""
    words, devices = _words(name), all_devices()
    matches = [device for device in devices if _words(device) and _words(device) <= words]
    if not matches:
        return None
    return devices[max(reversed(matches), key=lambda device: len("".join(_words(device))))]


def peak_flops(name: str) -> float | None:
    """Peak FLOP/s of a GPU in bfloat16 by its name; None if it is not in the table."""
    device = match_device(name)
    return None if device is None else device.peak("bfloat16")


def all_devices() -> dict[str, DeviceSpec]:
    """The table, with the devices of your own file."""
    variable = os.environ.get(DEVICES_VARIABLE)
    return DEVICES | _read_devices(Path(variable) if variable else DEVICES_FILE, is_named=bool(variable))


@cache
def _read_devices(file: Path, *, is_named: bool) -> dict[str, DeviceSpec]:
    try:
        file = file.expanduser()
    except RuntimeError:  # no home folder
        return {}
    if not is_named and not file.exists():
        return {}
    try:
        tables = tomllib.loads(read_utf8(file, max_bytes=MAX_FILE_BYTES, error=ConfigError))
    except ConfigError:
        raise
    except FileNotFoundError:
        raise ConfigError(f"{file} does not exist: ${DEVICES_VARIABLE} names it") from None
    except (ValueError, OSError, RecursionError) as error:
        raise ConfigError(f"{file} is not a list of devices in TOML ({error}); docs/costs.md has an example") from None
    return {name: _read_device(name, table, file) for name, table in tables.items()}


def _read_device(name: str, table: Any, file: Path) -> DeviceSpec:
    try:
        row = msgspec.convert(table, _Row)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{file}, device {name!r}: {error}; a device has bandwidth, memory and FLOP/s for bfloat16, float16, "
            f"float32 or float64"
        ) from None
    flops = {dtype: value for dtype in BYTES if (value := getattr(row, dtype)) is not None}
    for key, value in {"bandwidth": row.bandwidth, "memory": row.memory, **flops}.items():
        if not 0 < value < float("inf"):
            raise ConfigError(f"{file}, device {name!r}: {key}={value} must be above 0 and finite")
    if not flops:
        raise ConfigError(f"{file}, device {name!r} has no FLOP/s: add bfloat16, float16, float32 or float64")
    return DeviceSpec(name, flops, row.bandwidth, row.memory, source=str(file))


def _words(name: str) -> set[str]:
    """Of a device's name, without its vendor, unless there is nothing else."""
    words = set(_normalized(name).split())
    return words - VENDORS or words


def _normalized(name: str) -> str:
    return name.replace("-", " ").replace("_", " ").lower()
