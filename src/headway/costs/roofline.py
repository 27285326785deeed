"""How fast a device can be at best: the roofline (Williams et al. 2009).

    arithmetic intensity = FLOPs / bytes moved
    attainable FLOP/s    = min(peak FLOP/s, intensity × bandwidth)

Left of the ridge point, at peak / bandwidth, an operation is memory-bound; right of it, compute-bound. A decode step
does 2 FLOPs per weight and sequence, so in bfloat16 its intensity is about the batch size. The ridge point of an H200
is 206 FLOPs per byte: below that batch size, more sequences hardly slow the products with weights. Reading the KV
cache still takes longer with every sequence.
"""

from dataclasses import dataclass

from headway.costs.devices import DeviceSpec
from headway.costs.operations import Operation, Pass


@dataclass(frozen=True)
class Rates:
    """What a device does in a second, from its datasheet or measured."""

    flops_per_second: float
    bandwidth: float  # bytes per second
    name: str = ""

    @staticmethod
    def of(device: DeviceSpec, dtype: str) -> "Rates | None":
        peak = device.peak(dtype)
        return Rates(peak, device.bandwidth, device.name) if peak and device.bandwidth else None

    @property
    def ridge(self) -> float:
        """The intensity, in FLOPs per byte, at which arithmetic and memory take equally long."""
        return self.flops_per_second / self.bandwidth

    def attainable_flops(self, intensity: float) -> float:
        return min(self.flops_per_second, intensity * self.bandwidth)


def intensity(operation: Operation, costs: Pass, bytes_per_element: int) -> float:
    """FLOPs per byte, if the operation runs by itself: it reads its inputs from memory and writes its outputs there."""
    n_bytes = bytes_per_element * operation.elements.evaluate(costs.sizes)
    return costs.flops(operation) / n_bytes if n_bytes else 0.0


def is_memory_bound(operation: Operation, costs: Pass, bytes_per_element: int, rates: Rates) -> bool:
    return intensity(operation, costs, bytes_per_element) < rates.ridge


def lower_bound_seconds(costs: Pass, bytes_per_element: int, rates: Rates) -> float:
    """The roofline lower bound of a pass: the sum over its matrix products of max(FLOPs / peak FLOP/s, bytes of weights
    and KV cache / bandwidth).

    Activations are assumed to stay on the chip, softmax is not counted, and masked scores are skipped, as the best
    kernels do.
    """
    return sum(o.repeats * _lower_bound_seconds(o, costs, bytes_per_element, rates) for o in costs.operations)


def _lower_bound_seconds(operation: Operation, costs: Pass, bytes_per_element: int, rates: Rates) -> float:
    flops = operation.unmasked_flops.evaluate(costs.sizes) if operation.is_product else 0
    cache = operation.cache if costs.phase == "decode" else 0  # a prefill has just computed its keys and values
    n_bytes = bytes_per_element * (operation.weights + cache).evaluate(costs.sizes)
    return max(flops / rates.flops_per_second, n_bytes / rates.bandwidth)
