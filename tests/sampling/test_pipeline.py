"""Pipelines: order, presets, different settings per row, and shortcuts that change no result."""

import random

import pytest
import torch

from headway.errors import ConfigError, InputError
from headway.sampling import FLAT_NAMES, ORDER_PRESETS, SAMPLERS, History, Pipeline, draw
from headway.sampling.rng import TOKEN, uniform
from tests.sampling import cases

NAMES = [name for name in SAMPLERS if not name.startswith("mirostat")]


def names(pipe):
    return [sampler.name for sampler in pipe.samplers]


def test_flat_settings_are_sorted_by_preset_or_order():
    pipe = Pipeline(preset="default", temperature=0.7, top_k=40, dry_multiplier=0.8, xtc_probability=0.5)
    assert names(pipe) == ["dry", "top_k", "xtc", "temperature"]
    first = Pipeline(preset="temperature_first", temperature=0.7, top_k=40, repetition_window=3, repetition_penalty=1.1)
    assert names(first) == ["repetition_penalty", "temperature", "top_k"]
    assert first.stages[0] == {"stage": "repetition_penalty", "penalty": 1.1, "window": 3, "scope": "all"}
    assert names(Pipeline(order=["temperature", "top_k"], top_k=4, temperature=2.0)) == ["temperature", "top_k"]
    nested = Pipeline(preset="default", dry={"multiplier": 0.8, "window": 9}, logit_bias={3: 1.0})
    assert [(s["stage"], s.get("window")) for s in nested.stages] == [("logit_bias", None), ("dry", 9)]
    with pytest.raises(ConfigError, match=r"no setting named 'dry'. Its settings are dry_multiplier, dry_base"):
        Pipeline(preset="default", dry=0.8)
    listed = Pipeline([{"stage": "temperature", "temperature": 2.0}, {"stage": "top_k", "k": 4}], preset="default")
    assert names(listed) == ["top_k", "temperature"]


def test_min_keep_applies_to_every_filter_that_is_set():
    pipe = Pipeline(preset="default", top_k=1, top_p=0.1, top_p_min_keep=3, temperature=0.5, min_keep=2)
    assert [stage.get("min_keep") for stage in pipe.stages] == [2, 3, None]
    assert names(Pipeline(preset="default", min_keep=2)) == []
    with pytest.raises(ConfigError, match="min_keep=0 must be an integer >= 1"):
        Pipeline(preset="default", top_k=1, min_keep=0)


def test_invalid_orders_are_refused():
    top_k, mirostat = {"stage": "top_k", "k": 3}, {"stage": "mirostat_v2", "tau": 3}
    for build, message in [
        (lambda: Pipeline([top_k, top_k]), "top_k appears twice"),
        (lambda: Pipeline(preset="defualt"), "no order preset named 'defualt'. Did you mean 'default'"),
        (lambda: Pipeline(preset="default", topk=3), "no setting named 'topk'. Did you mean 'top_k'"),
        (lambda: Pipeline(order=["temperature"], top_k=3), "top_k is set but not in the order"),
        (lambda: Pipeline(order=["tempreature"]), "no sampler named 'tempreature'"),
        (lambda: Pipeline(order=["top_k", "top_k"]), "appears twice"),
        (lambda: Pipeline([mirostat, {"stage": "xtc", "probability": 0.5}]), "xtc comes after mirostat_v2"),
        (lambda: Pipeline([mirostat, top_k]), "must be the last filter"),
        (lambda: Pipeline([{"stage": "mirostat_v1", "tau": 3}, mirostat]), "last filter"),
        (lambda: Pipeline([{"stage": "top_k", "k": [1, 2]}, {"stage": "top_p", "p": [0.1] * 3}]), "different numbers"),
        (lambda: Pipeline([{"stage": "top_k", "k": [1, 2], "min_keep": [1, 1, 1]}]), "different numbers of rows"),
    ]:
        with pytest.raises(ConfigError, match=message):
            build()


def test_shapes_that_do_not_match_the_logits_are_refused():
    pipe = Pipeline([{"stage": "top_k", "k": [1, 2]}])
    xtc = Pipeline([{"stage": "xtc", "probability": 0.5}])
    for run, message in [
        (lambda: pipe.apply(torch.randn(3, 5)), "values for 2 rows, the logits have 3"),
        (lambda: pipe.apply(torch.randn(5)), r"logits of shape \(5,\)"),
        (lambda: Pipeline().apply(torch.ones(2, 5).long()), "type torch.int64"),
        (lambda: Pipeline().apply(torch.randn(2, 5), history=[[1]]), "for logits of 2 rows"),
        (lambda: Pipeline().apply(torch.randn(2, 5), history=[[1], []], n_prompt=[1]), "n_prompt of shape"),
        (lambda: xtc.apply(torch.randn(2, 5)), r"pass uniforms=\[…\]"),
        (lambda: xtc.apply(torch.randn(2, 5), uniforms=[0.1] * 3), "3 values for 2 rows"),
        (lambda: Pipeline().draw(torch.randn(2, 5), state=Pipeline().start(3, 0)), "a state of 3 rows"),
        (lambda: Pipeline().start(3, [1, 2]), "2 seeds for 3 rows"),
    ]:
        with pytest.raises(InputError, match=message):
            run()


@pytest.mark.parametrize("seed", range(20))
def test_a_mixed_batch_equals_its_rows_one_by_one(seed):
    """Rows with different samplers in different orders: the same values and kept sets, bit for bit."""
    rng = random.Random(seed)
    V, B = rng.choice([5, 60, 400]), rng.randint(2, 5)
    pipes = []
    for _ in range(B):
        chosen = rng.sample(NAMES, rng.randint(0, 5)) + rng.choice([[], ["mirostat_v1"], ["mirostat_v2"]])
        preset = rng.choice(["default", "temperature_first", None]) if seed % 2 else "default"
        pipes.append(Pipeline([cases.stage(rng, name, V) for name in chosen], preset=preset))
    logits = torch.tensor([cases.row(rng, V) for _ in range(B)])
    history = [cases.history(rng, V) for _ in range(B)]
    n_prompt = [rng.randint(0, len(h)) for h in history]
    batched = Pipeline.for_rows(pipes)
    state = batched.start(B, 7)
    rows = batched.apply(logits, history=history, n_prompt=n_prompt, state=state)
    ids, next_state = batched.draw(logits, history=history, n_prompt=n_prompt, state=state)
    for b, pipe in enumerate(pipes):
        context = {"history": history[b : b + 1], "n_prompt": n_prompt[b : b + 1], "state": pipe.start(1, [7 + b])}
        assert torch.equal(pipe.apply(logits[b : b + 1], **context)[0], rows[b])
        token, single_state = pipe.draw(logits[b : b + 1], **context)
        assert token[0] == ids[b]
        assert single_state.mu[0] == next_state.mu[b]


@pytest.mark.parametrize("name", NAMES)
def test_one_value_per_row_equals_one_pipeline_per_row(name):
    rng = random.Random(name)
    V = 300
    for _ in range(6):
        stages = [cases.stage(rng, name, V) for _ in range(4)]
        values = {key: [stage[key] for stage in stages] for key in stages[0] if key != "stage"}
        logits = torch.tensor([cases.row(rng, V) for _ in range(4)])
        history, uniforms = [cases.history(rng, V) for _ in range(4)], [rng.random() for _ in range(4)]
        rows = Pipeline([{"stage": name, **values}]).apply(logits, history=history, uniforms=uniforms)
        for b in range(4):
            i = slice(b, b + 1)
            single = Pipeline([stages[b]]).apply(logits[i], history=history[i], uniforms=uniforms[i])
            assert torch.equal(single[0], rows[b])


@pytest.mark.parametrize("seed", range(20))
def test_narrowing_after_top_k_changes_no_result(seed):
    """The same samplers on whole rows, as `explain` runs them, and on the columns that top_k keeps."""
    rng = random.Random(seed)
    V = 500
    others = rng.sample([name for name in NAMES if name not in ("top_k", "temperature")], 4)
    stages = [cases.stage(rng, name, V) for name in ("temperature", "top_k", *others)]
    stages[1] = {"stage": "top_k", "k": rng.randint(1, 60)}
    logits = torch.tensor([cases.row(rng, V) for _ in range(3)])
    context = {"history": [cases.history(rng, V)] * 3, "uniforms": [0.2, 0.4, 0.8]}
    pipe = Pipeline(stages)
    *_, (_, expected) = pipe.explain(logits, **context)
    rows = pipe.apply(logits, **context)
    assert torch.equal(rows.isfinite(), expected.isfinite())
    torch.testing.assert_close(rows, expected)


def test_narrowing_after_top_k_changes_no_draw():
    logits = torch.randn(200, 500, generator=torch.Generator().manual_seed(0))
    pipe = Pipeline(preset="default", top_k=20, typical=0.9)
    state = pipe.start(200, 1)
    tokens, _ = pipe.draw(logits, state=state)
    assert torch.equal(tokens, draw(pipe.apply(logits), uniform(state.seed, state.position, TOKEN)))


def test_histories_may_be_lists_or_a_padded_tensor():
    logits = torch.randn(3, 30)
    history = [[1, 2, 3, 1, 2], [4], []]
    padded = torch.full((3, 9), 29)
    for i, row in enumerate(history):
        padded[i, : len(row)] = torch.tensor(row, dtype=torch.long)
    pipe = Pipeline(
        preset="default", repetition_penalty=1.3, frequency_penalty=0.4, dry_multiplier=1.0, no_repeat_ngram=2
    )
    expected = pipe.apply(logits, history=history, n_prompt=[2, 0, 0])
    assert torch.equal(pipe.apply(logits, history=(padded, torch.tensor([5, 1, 0])), n_prompt=[2, 0, 0]), expected)
    ready = History.of(history, [2, 0, 0], 3, torch.device("cpu"))
    assert torch.equal(pipe.apply(logits, history=ready), expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.5, "dynamic_temperature_low": 0.5, "dynamic_temperature_high": 1.5}, "scaled twice"),
        ({"mirostat_v2_tau": 3.0, "top_p": 0.9}, "mirostat_v2 sets its own cutoff, and top_p truncates"),
        ({"repetition_penalty": 1.3}, "above 1.2"),
        ({"repetition_penalty": 1.1, "dry_multiplier": 0.8}, "one is enough"),
    ],
)
def test_settings_that_work_against_each_other_give_a_warning(settings, message):
    assert any(message in warning for warning in Pipeline(preset="default", **settings).warnings)


def test_settings_without_effect_give_a_note():
    pipe = Pipeline(preset="default", temperature=0.0, top_p=0.9)
    assert "keeps only the best token that top_p left" in pipe.notes[0]
    pipe = Pipeline(preset="default", dry_base=2.0, xtc_threshold=0.2, xtc_probability=0.5)
    assert pipe.notes == ["dry_base is set, but dry_multiplier, which turns dry on, is not"]


def test_xtc_before_a_mass_filter_gives_a_warning_and_usual_settings_none():
    pipe = Pipeline([{"stage": "xtc", "probability": 0.5}, {"stage": "min_p", "p": 0.1}])
    assert "xtc runs before min_p" in pipe.warnings[0]
    assert not Pipeline(preset="default", top_k=40, top_p=0.9, temperature=0.8, xtc_probability=0.5).warnings


def test_greedy_keeps_constraints_and_penalties_and_takes_the_best_token():
    pipe = Pipeline(
        preset="default", repetition_penalty=5.0, typical=0.1, xtc_probability=1.0, temperature=2.0
    ).greedy()
    assert names(pipe) == ["repetition_penalty", "temperature"]
    logits = torch.tensor([[3.0, 2.0, 1.0]])
    assert pipe.draw(logits, history=[[0]])[0].item() == 1


def test_presets_are_the_published_orders():
    filters = [
        "top_n_sigma",
        "top_k",
        "typical",
        "tail_free",
        "top_a",
        "eta_cutoff",
        "epsilon_cutoff",
        "top_p",
        "min_p",
    ]
    constraints = ["logit_bias", "no_repeat_ngram", "min_new_tokens"]
    penalties = ["repetition_penalty", "frequency_penalty", "presence_penalty", "dry"]
    reshaping, mirostat = ["quadratic", "dynamic_temperature", "temperature"], ["mirostat_v1", "mirostat_v2"]
    assert ORDER_PRESETS["default"] == [*constraints, *penalties, *filters, "xtc", *reshaping, *mirostat]
    assert ORDER_PRESETS["temperature_first"] == [*constraints, *penalties, *reshaping, *filters, "xtc", *mirostat]


COMPILED = {
    "constraint and penalty": {
        "logit_bias": {3: 1.0}, "no_repeat_ngram": 2, "min_new_tokens": 9, "min_new_tokens_eos_ids": [1],
        "repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.3,
    },
    "filter": {
        "top_n_sigma": 2.5, "top_k": 40, "typical": 0.98, "tail_free": 0.99, "top_a": 0.01, "eta_cutoff": 1e-4,
        "epsilon_cutoff": 1e-4, "top_p": 0.99, "min_p": 0.01, "xtc_probability": 0.5, "xtc_threshold": 0.02,
    },
    "reshape and mirostat": {
        "quadratic_factor": 0.1, "dynamic_temperature_low": 0.5, "dynamic_temperature_high": 1.5, "temperature": 0.8,
        "mirostat_v1_tau": 3.0,
    },
    "mirostat": {"mirostat_v2_tau": 3.0},
}  # fmt: skip


def test_every_sampler_but_dry_is_compiled_below():
    assert {FLAT_NAMES[name][0] for settings in COMPILED.values() for name in settings} == set(SAMPLERS) - {"dry"}


@pytest.mark.parametrize("group", COMPILED)
def test_samplers_compile_without_a_graph_break(group):
    """`dry` is left out: it builds a table of powers on the host."""
    pipe = Pipeline(preset="default", **COMPILED[group])
    logits = torch.randn(3, 60, generator=torch.Generator().manual_seed(0))
    history = History.of([[1, 2, 1]] * 3, None, 3, torch.device("cpu"))
    context = {"history": history, "uniforms": [0.1, 0.5, 0.9], "mu": 3.0}
    expected = pipe.apply(logits, **context)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: pipe.apply(x, **context), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits), expected)


def test_gradients_flow_after_use_in_inference_mode():
    """The columns that a pipeline caches are no inference tensors."""
    pipe = Pipeline([{"stage": "temperature", "temperature": 0.5}])
    with torch.inference_mode():
        pipe.apply(torch.randn(1, 5))
    x = torch.randn(1, 5, requires_grad=True)
    pipe.apply(x).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize(
    "stages",
    [
        [],
        [{"stage": "top_k", "k": 3}],
        [{"stage": "repetition_penalty", "penalty": 1.5}],
        [{"stage": "logit_bias", "bias": {"2": 4.0}}],
        [{"stage": "top_p", "p": 0.5}, {"stage": "min_p", "p": 0.1}],
    ],
)
def test_a_greedy_draw_is_a_draw_from_the_best_token_alone(stages):
    """The shortcut takes the best token; the definition draws from rows in which only the best one is left."""
    pipe = Pipeline([*stages, {"stage": "temperature", "temperature": 0.0}])
    assert pipe._is_greedy
    for seed in range(20):
        rng = torch.Generator().manual_seed(seed)
        logits = torch.randint(0, 6, (4, 40), generator=rng).float()  # many ties
        logits[torch.rand(4, 40, generator=rng) < 0.3] = -torch.inf
        history, state = [[1, 2, 3]] * 4, pipe.start(4, seed)
        ids, next_state = pipe.draw(logits, history=history, state=state)
        assert torch.equal(ids, draw(pipe.apply(logits, history=history, state=state), torch.rand(4)))
        assert next_state.position.tolist() == [1] * 4


def test_a_greedy_draw_refuses_rows_without_a_token():
    with pytest.raises(InputError, match="row 1 of the logits has NaN"):
        Pipeline(temperature=0.0).draw(torch.tensor([[0.0, 1.0], [torch.nan, 0.0]]))


def test_mirostat_before_temperature_zero_still_measures_the_surprise():
    pipe = Pipeline([{"stage": "mirostat_v2", "tau": 3.0}, {"stage": "temperature", "temperature": 0.0}])
    assert not pipe._is_greedy
