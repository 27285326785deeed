"""Random rows, histories and settings for tests of samplers."""

import math
import random

import torch

FILTERS = ["top_k", "top_p", "typical", "min_p", "top_a", "epsilon_cutoff", "eta_cutoff", "top_n_sigma", "tail_free"]


def row(rng: random.Random, V: int) -> list[float]:
    """Logits rounded to float32: spread out, all equal, or with many ties; in some rows tokens are already removed."""
    kind = rng.random()
    if kind < 0.3:
        l = [float(rng.randint(-3, 3)) for _ in range(V)]
    elif kind < 0.4:
        l = [1.5] * V
    else:
        l = [rng.gauss(0, rng.choice([0.5, 2, 5])) for _ in range(V)]
    if rng.random() < 0.4:
        for i in rng.sample(range(V), rng.randint(0, V - 1)):
            l[i] = -math.inf
    return torch.tensor(l).tolist()


def stage(rng: random.Random, name: str, V: int) -> dict:
    """A sampler with random parameters, now and then at their limits."""
    u = rng.uniform
    unit = rng.choice([0, 1, u(0, 1)])
    min_keep = {"min_keep": rng.choice([1, 1, 1, 2, 5])}
    low = u(0, 1)
    scope = {"window": rng.choice([0, 3]), "scope": rng.choice(["all", "generated"])}
    parameters = {
        "top_k": {"k": rng.randint(0, V + 2), **min_keep},
        "top_p": {"p": unit, **min_keep},
        "typical": {"p": unit, **min_keep},
        "min_p": {"p": unit, **min_keep},
        "top_a": {"a": unit, **min_keep},
        "epsilon_cutoff": {"epsilon": rng.choice([0, u(0, 0.5)]), **min_keep},
        "eta_cutoff": {"epsilon": rng.choice([0, u(0, 0.5)]), **min_keep},
        "top_n_sigma": {"n": rng.choice([0, u(0, 3)]), **min_keep},
        "tail_free": {"z": unit, **min_keep},
        "xtc": {
            "threshold": u(0.01, 0.6),
            "probability": rng.choice([0, 0.5, 1]),
            "protected": rng.sample(range(V), rng.randint(0, min(2, V))),
            **min_keep,
        },
        "temperature": {"temperature": rng.choice([0, 1, u(0.1, 3)])},
        "dynamic_temperature": {"low": low, "high": low + u(0, 1.5), "exponent": rng.choice([0, 1, u(0, 3)])},
        "quadratic": {"factor": rng.choice([0, u(0, 1)]), "curve": u(1, 3)},
        "repetition_penalty": {"penalty": u(0.5, 2), **scope},
        "frequency_penalty": {"penalty": u(-1, 2), **scope},
        "presence_penalty": {"penalty": u(-1, 2), **scope},
        "dry": {
            "multiplier": rng.choice([0, u(0, 2)]),
            "base": u(1, 3),
            "allowed_length": rng.randint(1, 3),
            "window": rng.choice([0, 0, 6]),
            "breakers": rng.sample(range(V), rng.randint(0, 1)),
        },
        "logit_bias": {"bias": {i: rng.choice([u(-5, 5), -math.inf]) for i in rng.sample(range(V), rng.randint(0, V))}},
        "no_repeat_ngram": {"n": rng.randint(0, 4)},
        "min_new_tokens": {"min_new": rng.randint(0, 12), "eos_ids": rng.sample(range(V), rng.randint(0, V))},
        "mirostat_v1": {"tau": u(0.5, 5), "m": rng.randint(2, 20)},
        "mirostat_v2": {"tau": u(0.5, 5)},
    }
    return {"stage": name, **parameters[name]}


def history(rng: random.Random, V: int) -> list[int]:
    """Tokens of a small alphabet, so that sequences repeat; now and then an id outside the vocabulary."""
    alphabet = list(range(min(V, rng.randint(2, 5)))) + ([V + 3] if rng.random() < 0.1 else [])
    return [rng.choice(alphabet) for _ in range(rng.randint(0, 25))]


def same_row(result: torch.Tensor, expected: list[float]) -> bool:
    """The same tokens are removed, the others equal to 1e-4."""
    e, r = torch.tensor(expected, dtype=torch.float64), result.double()
    alive = e > -math.inf
    return bool((alive == (r > -math.inf)).all()) and torch.allclose(r[alive], e[alive], rtol=1e-4, atol=1e-4)
