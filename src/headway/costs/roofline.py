"""How fast a device can be at best: the roofline (Williams et al. 2009).

    arithmetic intensity = FLOPs / bytes moved
    attainable FLOPS     = min(peak FLOPS, intensity × bandwidth)

Left of the ridge, at peak / bandwidth, an operation waits for memory; right of it, for arithmetic. One decode step has
about one FLOP per byte of weights and sequence of the batch, and a GPU's ridge is near 200: that is why batches, which
read the weights once for all sequences, cost almost nothing.
"""

from dataclasses import dataclass

from headway.costs.devices import DeviceSpec
from headway.costs.operations import Operation, Pass


@dataclass(frozen=True)
class Rates:
    """What a device does in a second, from its datasheet or measured."""

    flops: float
    bandwidth: float  # bytes per second
    name: str = ""

    @staticmethod
    def of(device: DeviceSpec, dtype: str) -> "Rates | None":
        peak = device.peak(dtype)
        return Rates(peak, device.bandwidth, device.name) if peak and device.bandwidth else None

    @property
    def ridge(self) -> float:
        """The intensity, in FLOPs per byte, at which arithmetic and memory take equally long."""
        return self.flops / self.bandwidth

    def attainable_flops(self, intensity: float) -> float:
        return min(self.flops, intensity * self.bandwidth)


def intensity(operation: Operation, costs: Pass, bytes_per_element: int) -> float:
    """FLOPs per byte, if the operation runs by itself: it reads its inputs from memory and writes its outputs there."""
    n_bytes = bytes_per_element * operation.elements.evaluate(costs.sizes)
    return costs.flops(operation) / n_bytes if n_bytes else 0.0


def is_memory_bound(operation: Operation, costs: Pass, bytes_per_element: int, rates: Rates) -> bool:
    return intensity(operation, costs, bytes_per_element) < rates.ridge


def least_seconds(costs: Pass, bytes_per_element: int, rates: Rates) -> float:
    """The least time of a pass: a lower bound, whatever the program.

    Each product waits for its arithmetic or for its weights and the KV cache, whichever takes longer. Activations
    may stay in a cache of the processor, and softmax in registers, so neither is counted.
    """
    return sum(o.repeats * _least_seconds(o, costs, bytes_per_element, rates) for o in costs.operations)


def _least_seconds(operation: Operation, costs: Pass, bytes_per_element: int, rates: Rates) -> float:
    flops = costs.flops(operation) if operation.is_product else 0
    cache = operation.cache if costs.phase == "decode" else 0  # a prefill has just computed its keys and values
    n_bytes = bytes_per_element * (operation.weights + cache).evaluate(costs.sizes)
    return max(flops / rates.flops, n_bytes / rates.bandwidth)
