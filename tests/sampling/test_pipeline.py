"""Pipelines: order, presets, rows of different settings, and the shortcuts that must not show."""

import random

import pytest
import torch

from headway.errors import ConfigError, InputError
from headway.sampling import FLAT, PRESETS, SAMPLERS, History, Pipeline
from tests.sampling import cases

NAMES = [n for n in SAMPLERS if not n.startswith("mirostat")]


def test_settings_by_name_in_the_order_of_a_preset():
    pipe = Pipeline(preset="default", temperature=0.7, top_k=40, dry_multiplier=0.8, xtc_probability=0.5)
    assert [call.name for call in pipe.samplers] == ["dry", "top_k", "xtc", "temperature"]
    first = Pipeline(preset="temperature_first", temperature=0.7, top_k=40, repetition_window=3, repetition_penalty=1.1)
    assert [call.name for call in first.samplers] == ["repetition_penalty", "temperature", "top_k"]
    assert first.stages[0] == {"stage": "repetition_penalty", "penalty": 1.1, "window": 3, "scope": "all"}
    own = Pipeline(order=["temperature", "top_k"], top_k=4, temperature=2.0)
    assert [call.name for call in own.samplers] == ["temperature", "top_k"]
    nested = Pipeline(preset="default", dry={"multiplier": 0.8, "window": 9}, logit_bias={3: 1.0})
    assert [(s["stage"], s.get("window")) for s in nested.stages] == [("logit_bias", None), ("dry", 9)]
    with pytest.raises(ConfigError, match=r"no setting named 'dry'. Its settings are dry_multiplier, dry_base"):
        Pipeline(preset="default", dry=0.8)
    listed = Pipeline([{"stage": "temperature", "temperature": 2.0}, {"stage": "top_k", "k": 4}], preset="default")
    assert [call.name for call in listed.samplers] == ["top_k", "temperature"]


def test_every_flat_name_leads_to_its_parameter():
    assert FLAT["top_k"] == ("top_k", "k")
    assert FLAT["dry_multiplier"] == ("dry", "multiplier")
    assert FLAT["repetition_window"] == ("repetition_penalty", "window")
    assert len(FLAT) == sum(len(stage.parameters) for stage in SAMPLERS.values())


def test_orders_that_cannot_be():
    top, steer = {"stage": "top_k", "k": 3}, {"stage": "mirostat_v2", "tau": 3}
    for build, said in [
        (lambda: Pipeline([top, top]), "top_k appears twice"),
        (lambda: Pipeline(preset="defualt"), "no order preset named 'defualt'. Did you mean 'default'"),
        (lambda: Pipeline(preset="default", topk=3), "no setting named 'topk'. Did you mean 'top_k'"),
        (lambda: Pipeline(order=["temperature"], top_k=3), "top_k is set but not in the order"),
        (lambda: Pipeline(order=["tempreature"]), "no sampler named 'tempreature'"),
        (lambda: Pipeline(order=["top_k", "top_k"]), "appears twice"),
        (lambda: Pipeline([steer, {"stage": "xtc", "probability": 0.5}]), "xtc stands after"),
        (lambda: Pipeline([steer, top]), "must be the last filter"),
        (lambda: Pipeline([{"stage": "mirostat_v1", "tau": 3}, steer]), "last filter"),
        (lambda: Pipeline([{"stage": "top_k", "k": [1, 2]}, {"stage": "top_p", "p": [0.1] * 3}]), "different numbers"),
        (lambda: Pipeline([{"stage": "top_k", "k": [1, 2], "min_keep": [1, 1, 1]}]), "different numbers of rows"),
    ]:  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            build()


def test_what_does_not_fit_the_logits():
    pipe = Pipeline([{"stage": "top_k", "k": [1, 2]}])
    xtc = Pipeline([{"stage": "xtc", "probability": 0.5}])
    for call, said in [
        (lambda: pipe.apply(torch.randn(3, 5)), "values for 2 rows, the logits have 3"),
        (lambda: pipe.apply(torch.randn(5)), r"logits of shape \(5,\)"),
        (lambda: Pipeline().apply(torch.ones(2, 5).long()), "type torch.int64"),
        (lambda: Pipeline().apply(torch.randn(2, 5), history=[[1]]), "for logits of 2 rows"),
        (lambda: Pipeline().apply(torch.randn(2, 5), history=[[1], []], n_prompt=[1]), "n_prompt of shape"),
        (lambda: xtc.apply(torch.randn(2, 5)), "tosses a coin"),
        (lambda: xtc.apply(torch.randn(2, 5), uniforms=[0.1] * 3), "3 values for 2 rows"),
        (lambda: Pipeline().draw(torch.randn(2, 5), state=Pipeline().start(3, 0)), "a state of 3 rows"),
        (lambda: Pipeline().start(3, [1, 2]), "2 seeds for 3 rows"),
    ]:  # fmt: skip
        with pytest.raises(InputError, match=said):
            call()


@pytest.mark.parametrize("seed", range(40))
def test_a_mixed_batch_is_its_rows_one_by_one(seed):
    """Rows with different stages in different orders, values and kept sets bit for bit."""
    rng = random.Random(seed)
    V, B = rng.choice([5, 60, 400]), rng.randint(2, 5)
    pipes = []
    for _ in range(B):
        names = rng.sample(NAMES, rng.randint(0, 5)) + rng.choice([[], ["mirostat_v1"], ["mirostat_v2"]])
        preset = rng.choice(["default", "temperature_first", None]) if seed % 2 else "default"
        pipes.append(Pipeline([cases.settings(rng, name, V) for name in names], preset=preset))
    logits = torch.tensor([cases.row(rng, V) for _ in range(B)])
    history = [cases.history(rng, V) for _ in range(B)]
    n_prompt = [rng.randint(0, len(h)) for h in history]
    together = Pipeline.for_rows(pipes)
    state = together.start(B, 7)
    found = together.apply(logits, history=history, n_prompt=n_prompt, state=state)
    ids, after = together.draw(logits, history=history, n_prompt=n_prompt, state=state)
    for b, pipe in enumerate(pipes):
        around = {"history": history[b : b + 1], "n_prompt": n_prompt[b : b + 1], "state": pipe.start(1, [7 + b])}
        assert torch.equal(pipe.apply(logits[b : b + 1], **around)[0], found[b])
        token, alone = pipe.draw(logits[b : b + 1], **around)
        assert token[0] == ids[b]
        assert alone.mu[0] == after.mu[b]


@pytest.mark.parametrize("name", NAMES)
def test_one_value_per_row(name):
    rng = random.Random(name)
    V = 300
    for _ in range(20):
        each = [cases.settings(rng, name, V) for _ in range(4)]
        stage = {key: [s[key] for s in each] for key in each[0] if key != "stage"}
        logits = torch.tensor([cases.row(rng, V) for _ in range(4)])
        history, us = [cases.history(rng, V) for _ in range(4)], [rng.random() for _ in range(4)]
        found = Pipeline([{"stage": name, **stage}]).apply(logits, history=history, uniforms=us)
        for b in range(4):
            alone = Pipeline([each[b]]).apply(logits[b : b + 1], history=history[b : b + 1], uniforms=us[b : b + 1])
            assert torch.equal(alone[0], found[b])


@pytest.mark.parametrize("seed", range(20))
def test_narrowing_after_top_k_does_not_show(seed):
    """The same stages on whole rows, as `explain` runs them, and on the columns top_k left."""
    rng = random.Random(seed)
    V = 500
    names = ["temperature", "top_k", *rng.sample([n for n in NAMES if n not in ("top_k", "temperature")], 4)]
    stages = [cases.settings(rng, name, V) for name in names]
    stages[1] = {"stage": "top_k", "k": rng.randint(1, 60)}
    logits = torch.tensor([cases.row(rng, V) for _ in range(3)])
    around = {"history": [cases.history(rng, V)] * 3, "uniforms": [0.2, 0.4, 0.8]}
    pipe = Pipeline(stages)
    *_, (_, whole) = pipe.explain(logits, **around)
    found = pipe.apply(logits, **around)
    assert torch.equal(found.isfinite(), whole.isfinite())
    torch.testing.assert_close(found, whole)


def test_histories_as_lists_and_as_a_padded_tensor():
    logits = torch.randn(3, 30)
    rows = [[1, 2, 3, 1, 2], [4], []]
    padded = torch.full((3, 9), 29)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = torch.tensor(row, dtype=torch.long)
    pipe = Pipeline(
        preset="default", repetition_penalty=1.3, frequency_penalty=0.4, dry_multiplier=1.0, no_repeat_ngram=2
    )
    expected = pipe.apply(logits, history=rows, n_prompt=[2, 0, 0])
    assert torch.equal(pipe.apply(logits, history=(padded, torch.tensor([5, 1, 0])), n_prompt=[2, 0, 0]), expected)
    ready = History.of(rows, [2, 0, 0], 3, torch.device("cpu"))
    assert torch.equal(pipe.apply(logits, history=ready), expected)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"temperature": 0.5, "dynamic_temperature_low": 0.5, "dynamic_temperature_high": 1.5}, "scaled twice"),
        ({"mirostat_v2_tau": 3.0, "top_p": 0.9}, "steers what top_p caps"),
        ({"repetition_penalty": 1.3}, "above 1.2"),
        ({"repetition_penalty": 1.1, "dry_multiplier": 0.8}, "one of them is enough"),
    ],
)
def test_settings_that_work_against_each_other_are_named(settings, said):
    assert any(said in warning for warning in Pipeline(preset="default", **settings).warnings)


def test_what_has_no_effect_is_noted():
    assert (
        "keeps one token, the best that top_p left" in Pipeline(preset="default", temperature=0.0, top_p=0.9).notes[0]
    )
    pipe = Pipeline(preset="default", dry_base=2.0, xtc_threshold=0.2, xtc_probability=0.5)
    assert pipe.notes == ["dry_base is set, but dry_multiplier is not, which turns dry on"]


def test_xtc_before_a_mass_filter_is_named_and_sane_settings_are_not():
    pipe = Pipeline([{"stage": "xtc", "probability": 0.5}, {"stage": "min_p", "p": 0.1}])
    assert "xtc stands before min_p" in pipe.warnings[0]
    assert not Pipeline(preset="default", top_k=40, top_p=0.9, temperature=0.8, xtc_probability=0.5).warnings


def test_greedy_keeps_constraints_and_penalties_and_takes_the_best():
    pipe = Pipeline(
        preset="default", repetition_penalty=5.0, typical=0.1, xtc_probability=1.0, temperature=2.0
    ).greedy()
    assert [call.name for call in pipe.samplers] == ["repetition_penalty", "temperature"]
    logits = torch.tensor([[3.0, 2.0, 1.0]])
    assert pipe.draw(logits, history=[[0]])[0].item() == 1


def test_presets_are_the_published_orders():
    assert PRESETS["default"].index("temperature") > PRESETS["default"].index("xtc")
    first = PRESETS["temperature_first"]
    assert first.index("dry") < first.index("quadratic") < first.index("temperature") < first.index("top_n_sigma")


@pytest.mark.parametrize("name", [n for n in SAMPLERS if n != "dry"])
def test_a_stage_compiles_whole(name):
    """No graph break; `dry` has a table of powers that is made outside."""
    stage = cases.settings(random.Random(name + "!"), name, 60)
    pipe = Pipeline([{"stage": "min_p", "p": 0.01}, stage] if name != "min_p" else [stage])
    logits, around = torch.randn(3, 60), {"history": [[1, 2, 1]] * 3, "uniforms": [0.1, 0.5, 0.9], "mu": 3.0}
    ready = {**around, "history": History.of(around["history"], None, 3, torch.device("cpu"))}
    expected = pipe.apply(logits, **ready)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: pipe.apply(x, **ready), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits), expected)


def test_gradients_flow_after_writing():
    """What a pipeline keeps between calls is no inference tensor."""
    pipe = Pipeline([{"stage": "temperature", "temperature": 0.5}])
    with torch.inference_mode():
        pipe.apply(torch.randn(1, 5))
    x = torch.randn(1, 5, requires_grad=True)
    pipe.apply(x).sum().backward()
    assert x.grad is not None
