"""All costs of one model at one size, for the table of `headway cost` and for `--json`."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import comb
from typing import Any

from headway.config import (
    BagOfWordsConfig,
    BahdanauConfig,
    BiLSTMConfig,
    GPTConfig,
    ModelConfig,
    NGramConfig,
    NPLMConfig,
    RNNConfig,
    Seq2SeqConfig,
    StackConfig,
    TrainConfig,
    TransformerConfig,
)
from headway.config.models import MAX_SIZE
from headway.costs.budget import TrainingBudget, parallelism
from headway.costs.devices import BYTES, DeviceSpec
from headway.costs.formula import Formula, symbols
from headway.costs.memory import Memory, training_memory
from headway.costs.operations import Pass, Phase, can_decode, count_pass, has_source
from headway.costs.parameters import Parameters, parameter_table
from headway.costs.roofline import Rates, intensity, is_memory_bound, lower_bound_seconds
from headway.costs.state import DecodeState, decode_state
from headway.errors import ConfigError, suggest

DEFAULT_SEQ_LEN = 512  # of families without a maximum length
n, s = symbols("n s")


@dataclass(frozen=True)
class CostReport:
    """What a model costs. Sizes that are None have been filled in by `cost_report`."""

    name: str
    config: ModelConfig
    batch_size: int
    seq_len: int
    source_len: int | None
    new_tokens: int | None
    dtype: str
    device: DeviceSpec | None = None
    n_devices: int = 1
    window: int | None = None
    rates_: Rates | None = None  # measured, instead of the device's own

    # ── counts ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def bytes_per_element(self) -> int:
        return BYTES["float32" if isinstance(self.config, NGramConfig) else self.dtype]  # tables of 32-bit numbers

    @cached_property
    def parameters(self) -> Parameters | None:
        return parameter_table(self.config)

    @cached_property
    def forward(self) -> Pass:
        return self.count("forward", self.seq_len)

    @cached_property
    def prefill(self) -> Pass:
        return self.count("prefill", self.seq_len)

    @cached_property
    def decode(self) -> Pass | None:
        """One step that attends to `seq_len` tokens, or to as many as the window keeps."""
        return self.count("decode", self.seq_len) if can_decode(self.config) else None

    def count(self, phase: Phase, seq_len: int) -> Pass:
        """The operations of one phase at another length."""
        counted = count_pass(
            self.config,
            phase,
            batch_size=self.batch_size,
            seq_len=seq_len,
            source_len=self.source_len,
            window=self.window,
        )
        assert counted is not None  # `cost_report` refuses such families
        return counted

    @cached_property
    def state(self) -> DecodeState | None:
        return self.state_after(self.seq_len)

    def state_after(self, seq_len: int, batch_size: int | None = None) -> DecodeState | None:
        return decode_state(
            self.config,
            batch_size=self.batch_size if batch_size is None else batch_size,
            seq_len=seq_len,
            source_len=self.source_len,
            bytes_per_element=self.bytes_per_element,
            window=self.window,
        )

    @property
    def n_params(self) -> int | None:
        return None if self.parameters is None else self.parameters.total

    @property
    def weight_bytes(self) -> int | None:
        return None if self.n_params is None else self.bytes_per_element * self.n_params

    @property
    def training_flops(self) -> int:
        """Of one step: forward and backward."""
        return self.forward.total_flops + self.forward.backward_flops

    @property
    def unmasked_training_flops(self) -> int:
        """Those of kernels that skip masked scores, forward and backward."""
        return self.training_flops - 3 * (self.forward.total_flops - self.forward.unmasked_flops)

    @cached_property
    def generation_flops(self) -> int | None:
        """Of `new_tokens` tokens after a prompt of `seq_len`: the prefill gives the first, a decode step each other."""
        if self.new_tokens is None or not can_decode(self.config):
            return None
        return self.prefill.total_flops + sum(p.total_flops * n_steps for p, n_steps in self._decode_ends()) // 2

    @cached_property
    def uncached_generation_flops(self) -> int | None:
        """The same without a KV cache: every new token is a prefill of all tokens before it."""
        if self.new_tokens is None or not isinstance(self.config, GPTConfig | TransformerConfig):
            return None
        total = 0
        for start, end in self._stretches(self.seq_len, self.seq_len + self.new_tokens - 1):
            # FLOPs of a prefill are a polynomial of degree 2 in its length: its sum follows from three values.
            first, second, third = (self.count("prefill", start + i).total_flops for i in range(3))
            slope, curvature = second - first, third - 2 * second + first
            n_tokens = end - start + 1
            total += n_tokens * first + comb(n_tokens, 2) * slope + comb(n_tokens, 3) * curvature
        encoder = replace(self.prefill, operations=[o for o in self.prefill.operations if o.stage == "encoder layer"])
        return total - (self.new_tokens - 1) * encoder.total_flops  # the source is encoded once

    def _decode_ends(self) -> list[tuple[Pass, int]]:
        """The first and the last decode step of each stretch over which costs grow by the same amount per step, and
        the number of steps of that stretch: their mean is that of all steps."""
        return [
            (self.count("decode", n_keys), end - start + 1)
            for start, end in self._stretches(self.seq_len + 1, self.seq_len + (self.new_tokens or 1) - 1)
            for n_keys in (start, end)
        ]

    def _stretches(self, first: int, last: int) -> list[tuple[int, int]]:
        """The lengths from `first` to `last`, cut where a full window ends the growth: (start, end) of each part."""
        stretches = [(first, last)]
        if self.window is not None and first <= self.window < last:
            stretches = [(first, self.window), (self.window + 1, last)]
        return [(start, end) for start, end in stretches if end >= start]

    @property
    def has_layers(self) -> bool:
        """Whether there are layers that combine tokens: not in an n-gram or a bag of words."""
        return getattr(self.config, "n_layers", 1) > 0 and not isinstance(self.config, BagOfWordsConfig | NGramConfig)

    @property
    def sequential_steps(self) -> Formula:
        """Steps that wait for each other: of a layer, or of one in the encoder and one in the decoder (Vaswani et al.
        2017, Table 1)."""
        if not self.has_layers:
            return Formula()
        match self.config:
            case RNNConfig() | BiLSTMConfig():
                return n
            case Seq2SeqConfig() | BahdanauConfig():
                return s + n
        return Formula.constant(1)

    @property
    def longest_path(self) -> str:
        """Between two tokens, through the layers of the model (Vaswani et al. 2017, Table 1)."""
        if not self.has_layers:
            return "none: there are no layers"
        match self.config:
            case RNNConfig() | BiLSTMConfig():
                return "n between two tokens"
            case Seq2SeqConfig():
                return "s + n between two tokens"
            case BahdanauConfig():
                return "1 from the source to a target token, s between source and n between target tokens"
            case NPLMConfig():
                return "1 between two tokens of the window; none to earlier tokens"
        return "1 between two tokens"

    # ── bounds ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def rates(self) -> Rates | None:
        if self.rates_ is not None:
            return self.rates_
        return None if self.device is None else Rates.of(self.device, self.dtype)

    def lower_bound_seconds(self, counted: Pass) -> float | None:
        return None if self.rates is None else lower_bound_seconds(counted, self.bytes_per_element, self.rates)

    @property
    def max_tokens_per_second(self) -> float | None:
        """Of decoding, over the whole batch."""
        seconds = None if self.decode is None else self.lower_bound_seconds(self.decode)
        return self.batch_size / seconds if seconds else None

    @property
    def training_lower_bound_seconds(self) -> float | None:
        """The bound of the forward pass, plus the backward FLOPs at peak FLOP/s."""
        forward = self.lower_bound_seconds(self.forward)
        if self.rates is None or forward is None:
            return None
        return forward + (self.unmasked_training_flops - self.forward.unmasked_flops) / self.rates.flops_per_second

    @property
    def total_tokens(self) -> int:
        """Of a sequence at the end of a generation."""
        return self.seq_len + (self.new_tokens or 0 if can_decode(self.config) else 0)

    @property
    def max_sequences(self) -> int | None:
        """How many sequences fit beside the weights in the device's memory; None where that is not known."""
        state = self.state_after(self.total_tokens, batch_size=1)
        if self.device is None or not self.device.memory or self.weight_bytes is None or state is None:
            return None
        return max(0, int((self.device.memory - self.weight_bytes) // max(1, state.nbytes)))

    def training_memory(self, *, checkpoint_activations: bool = False, device_type: str = "cuda") -> Memory | None:
        """Of each device that trains this batch with AdamW, in the dtype of the report, with DDP if there are several:
        it holds gradients in buckets of its own. Transformers only."""
        if not isinstance(self.config, StackConfig) or self.n_params is None:
            return None
        return training_memory(
            self.config,
            self.n_params,
            TrainConfig(checkpoint_activations=checkpoint_activations),
            batch_size=self.batch_size,
            seq_len=self.seq_len,
            source_len=self.source_len,
            ranks=self.n_devices,
            bytes_per_element=self.bytes_per_element,
            device_type=device_type,
        )

    @property
    def budget(self) -> TrainingBudget | None:
        """None for look-up models (n-gram, bag of words), where 6 FLOPs per parameter and token would be wrong."""
        if self.n_params is None or not self.forward.total_flops or not self.has_layers:
            return None
        return TrainingBudget.compute_optimal(self.n_params)

    @property
    def budget_seconds(self) -> float | None:
        """Of a compute-optimal training, in the dtype of the report."""
        peak = None if self.device is None else self.device.peak(self.dtype)
        return self.budget.seconds(peak, self.n_devices) if self.budget is not None and peak else None

    @property
    def parallelism(self) -> str | None:
        memory, checkpointed = self.training_memory(), self.training_memory(checkpoint_activations=True)
        if memory is None or checkpointed is None or self.device is None or not self.device.memory:
            return None
        return parallelism(memory, checkpointed, self.device, self.n_devices, self.batch_size)

    def notes(self) -> list[str]:
        """What to keep in mind, and where the lectures' slides say something else."""
        c, lines = self.config.resolved(), []
        lengths = {"tokens": self.total_tokens, "source tokens": (self.source_len or 0) if has_source(c) else 0}
        for name, length in lengths.items():
            if c.context is not None and length > c.context:
                lines.append(f"{length:,} {name} exceed the model's context of {c.context:,}")
        if isinstance(c, TransformerConfig) and (c.vocab_size, c.d_model, c.n_encoder_layers) == (40_000, 512, 6):
            lines.append(
                "the lecture says 62M: it rounds 12 d² = 3.1M to 3M and 16 d² = 4.2M to 4M per layer, V d to 20M, and "
                "leaves out biases and norms"
            )
        if isinstance(c, GPTConfig) and (c.n_layers, c.d_model, c.n_heads) == (48, 1600, 25):
            lines.append("a slide gives GPT-2 XL 12 heads: it has 25, of width 64")
        return lines

    # ── JSON ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "family": self.config.family,
            "batch_size": self.batch_size,
            "seq_len": self.seq_len,
            **({"source_len": self.source_len} if has_source(self.config) else {}),
            **({"new_tokens": self.new_tokens} if self.new_tokens is not None else {}),
            **({"window": self.window} if self.window is not None else {}),
            "dtype": self.dtype,
            "device": self._device_dict(),
            "parameters": self._parameters_dict(),
            "weight_bytes": self.weight_bytes,
            "forward": self._pass_dict(self.forward),
            "prefill": self._pass_dict(self.prefill) if can_decode(self.config) else None,
            "decode": None if self.decode is None else self._pass_dict(self.decode),
            "training_flops": self.training_flops,
            "generation_flops": self.generation_flops,
            "uncached_generation_flops": self.uncached_generation_flops,
            "state": None
            if self.state is None
            else _formula_dict(self.state.elements, self.state.sizes, "elements") | {"bytes": self.state.nbytes},
            "sequential_steps": str(self.sequential_steps),
            "longest_path": self.longest_path,
            "max_sequences": self.max_sequences,
            "max_tokens_per_second": self.max_tokens_per_second,
            "training_lower_bound_seconds": self.training_lower_bound_seconds,
            "training_memory": _memory_dict(self.training_memory()),
            "training_memory_checkpointed": _memory_dict(self.training_memory(checkpoint_activations=True)),
            "budget": self._budget_dict(),
            "notes": self.notes(),
        }

    def _device_dict(self) -> dict[str, Any] | None:
        if self.device is None or self.rates is None:
            return None
        return {
            "name": self.device.name,
            "flops_per_second": self.rates.flops_per_second,
            "bandwidth": self.rates.bandwidth,
            "memory": self.device.memory or None,
            "ridge": self.rates.ridge,
            "n_devices": self.n_devices,
        }

    def _parameters_dict(self) -> dict[str, Any] | None:
        table = self.parameters
        if table is None:
            return None
        groups = {}
        for group, components in table.groups().items():
            formula, estimate = table.estimate(components)
            groups[group] = {
                "total": sum(map(table.count, components)),
                "estimate": {"formula": formula, "value": estimate},
                "components": [
                    {"name": part.name, "repeats": part.repeats, "total": table.count(part)}
                    | _formula_dict(part.parameters, table.sizes, "each")
                    for part in components
                ],
            }
        return {"total": table.total, "groups": groups}

    def _pass_dict(self, counted: Pass) -> dict[str, Any]:
        rows = []
        for o in counted.operations:
            row: dict[str, Any] = {"name": o.name, "stage": o.stage, "repeats": o.repeats, "is_product": o.is_product}
            row |= _formula_dict(o.flops, counted.sizes, "flops")
            if counted.phase == "forward" and o.is_product:
                row["backward_flops"] = o.backward.evaluate(counted.sizes)
                row["backward_formula"] = str(o.backward)
            row["elements"] = o.elements.evaluate(counted.sizes)
            row["elements_formula"] = str(o.elements)
            row["intensity"] = intensity(o, counted, self.bytes_per_element)
            if self.rates is not None:
                is_slow = is_memory_bound(o, counted, self.bytes_per_element, self.rates)
                row["bound_by"] = "memory" if is_slow else "compute"
            rows.append(row)
        return {"rows": rows, "flops": counted.total_flops, "lower_bound_seconds": self.lower_bound_seconds(counted)}

    def _budget_dict(self) -> dict[str, Any] | None:
        if self.budget is None:
            return None
        budget = {"tokens": self.budget.n_tokens, "flops": self.budget.flops}
        if (seconds := self.budget_seconds) is not None:
            return budget | {"seconds": seconds, "parallelism": self.parallelism}
        return budget


def _formula_dict(formula: Formula, sizes: dict[str, int] | Any, key: str) -> dict[str, Any]:
    return {key: formula.evaluate(sizes), "formula": str(formula)}


def _memory_dict(memory: Memory | None) -> dict[str, float] | None:
    return None if memory is None else {**memory.__dict__, "total": memory.total}


def cost_report(
    config: ModelConfig,
    name: str = "",
    *,
    batch_size: int = 1,
    seq_len: int | None = None,
    source_len: int | None = None,
    new_tokens: int | None = None,
    dtype: str | None = None,
    device: DeviceSpec | None = None,
    n_devices: int = 1,
    window: int | None = None,
) -> CostReport:
    """What a model of this config costs.

    `seq_len` defaults to the model's context, `source_len` to `seq_len`, and `dtype` to float32, or to bfloat16 if a
    device is given that has a rate for it.

    >>> from headway.config import model_config
    >>> cost_report(model_config("gpt2"), seq_len=1024).forward.total_flops
    291648307200
    """
    sizes = {"batch_size": batch_size, "seq_len": seq_len, "source_len": source_len, "new_tokens": new_tokens}
    for key, value in {**sizes, "n_devices": n_devices, "window": window}.items():
        if value is not None and not 1 <= value <= MAX_SIZE:
            raise ConfigError(f"{key}={value} must be from 1 to {MAX_SIZE:,}", setting=key)
    if dtype is None:
        known = () if device is None else device.flops
        dtype = next((name for name in ("bfloat16", "float16") if name in known), "float32")
    if dtype not in BYTES:
        raise ConfigError(f"dtype={dtype!r} is not one of {', '.join(BYTES)}.{suggest(dtype, BYTES)}", setting="dtype")
    if device is not None and device.peak(dtype) is None:
        known_dtypes = ", ".join(device.flops)
        raise ConfigError(f"the FLOP/s of {device.name} in {dtype} are not known; choose from {known_dtypes}")
    if count_pass(config) is None:
        raise ConfigError(f"the family {config.family!r} comes from a plug-in: its operations are not known")
    seq_len = seq_len or config.context or DEFAULT_SEQ_LEN
    return CostReport(
        name or config.family,
        config,
        batch_size,
        seq_len,
        source_len or seq_len,
        new_tokens,
        dtype,
        device,
        n_devices,
        window,
    )
