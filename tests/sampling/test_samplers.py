"""Every sampler against its definition in plain Python, and the properties that all must have."""

import itertools
import math
import random

import pytest
import torch

from headway.errors import ConfigError, InputError
from headway.sampling import ORDER_PRESETS, SAMPLERS, History, Pipeline
from headway.sampling.penalties import repeats
from tests.reference import sampling as reference
from tests.sampling import cases

NAMES = list(SAMPLERS)
WORKED_ROW = torch.tensor([[2.0, 1.0, 1.0, 0.0, -1.0, -3.0]])


def test_every_sampler_is_in_both_presets_and_has_a_reference():
    assert sorted(ORDER_PRESETS["default"]) == sorted(ORDER_PRESETS["temperature_first"]) == sorted(NAMES)
    assert set(reference.SAMPLERS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_sampler_equals_its_definition(name):
    rng = random.Random(name)
    for trial in range(40):
        V, B = rng.choice([2, 3, 6, 20, 70, 300]), rng.randint(1, 4)
        rows = [cases.row(rng, V) for _ in range(B)]
        stage = cases.stage(rng, name, V)
        histories = [cases.history(rng, V) for _ in rows]
        n_prompt = [rng.randint(0, len(h)) for h in histories]
        uniforms, mus = [rng.random() for _ in rows], [rng.uniform(0.5, 8) for _ in rows]
        logits = torch.tensor(rows, dtype=torch.float64 if trial % 2 else torch.float32)
        result = Pipeline([stage]).apply(logits, history=histories, n_prompt=n_prompt, uniforms=uniforms, mu=mus)
        assert result.dtype == logits.dtype
        for b, row in enumerate(rows):
            context = {"history": histories[b], "n_prompt": n_prompt[b], "u": uniforms[b], "mu": mus[b]}
            assert cases.same_row(result[b], reference.apply([stage], row, **context)), (stage, row, context)


@pytest.mark.parametrize("seed", range(8))
def test_a_pipeline_equals_its_samplers_one_after_another(seed):
    rng = random.Random(seed)
    for _ in range(20):
        V = rng.choice([3, 20, 90, 400])
        names = rng.sample([n for n in NAMES if not n.startswith("mirostat")], rng.randint(2, 6))
        names += rng.choice([[], [], ["mirostat_v1"], ["mirostat_v2"]])
        stages = [cases.stage(rng, name, V) for name in names]
        row, history = cases.row(rng, V), cases.history(rng, V)
        n, u, mu = rng.randint(0, len(history)), rng.random(), rng.uniform(0.5, 8)
        result = Pipeline(stages).apply(torch.tensor([row]), history=[history], n_prompt=[n], uniforms=[u], mu=[mu])
        assert cases.same_row(result[0], reference.apply(stages, row, history=history, n_prompt=n, u=u, mu=mu)), stages


@pytest.mark.parametrize(
    ("stage", "kept"),
    [
        ({"stage": "top_k", "k": 2}, [0, 1]),
        ({"stage": "top_p", "p": 0.7}, [0, 1]),
        ({"stage": "min_p", "p": 0.2}, [0, 1, 2]),
        ({"stage": "top_a", "a": 0.5}, [0, 1, 2]),
        ({"stage": "epsilon_cutoff", "epsilon": 0.08}, [0, 1, 2]),
        ({"stage": "eta_cutoff", "epsilon": 0.08}, [0, 1, 2]),
        ({"stage": "top_n_sigma", "n": 1}, [0, 1, 2]),
        ({"stage": "tail_free", "z": 0.5}, [0]),
        ({"stage": "typical", "p": 0.5}, [0, 1, 2]),
        ({"stage": "xtc", "threshold": 0.15, "probability": 1.0}, [2, 3, 4, 5]),
        ({"stage": "mirostat_v1", "tau": 1.0}, [0, 1]),
        ({"stage": "mirostat_v2", "tau": 1.0}, [0]),
    ],
    ids=lambda v: v["stage"] if isinstance(v, dict) else "",
)
def test_filters_of_the_worked_row(stage, kept):
    result = Pipeline([stage]).apply(WORKED_ROW, mu=2.0)[0]
    assert result.isfinite().nonzero().flatten().tolist() == kept
    assert torch.equal(result[kept], WORKED_ROW[0, kept])


@pytest.mark.parametrize(
    ("stages", "history", "expected"),
    [
        ([{"stage": "temperature", "temperature": 0.5}], [], [4, 2, 2, 0, -2, -6]),
        ([{"stage": "quadratic", "factor": 0.5}], [], [2, 1.5, 1.5, 0, -2.5, -10.5]),
        ([{"stage": "quadratic", "factor": 0.5, "curve": 2}], [], [2, 1.5, 1.5, -1, -7, -35.5]),
        ([{"stage": "repetition_penalty", "penalty": 1.25}], [0, 4], [1.6, 1, 1, 0, -1.25, -3]),
        (
            [{"stage": "frequency_penalty", "penalty": 0.3}, {"stage": "presence_penalty", "penalty": 0.5}],
            [0, 0, 4],
            [0.9, 1, 1, 0, -1.8, -3],
        ),
        ([{"stage": "dry", "multiplier": 0.8}], [1, 2, 3, 1, 2], [2, 1, 1, -0.8, -1, -3]),
        (
            [{"stage": "dynamic_temperature", "low": 0.5, "high": 1.5}],
            [],
            [x / 1.210675 for x in (2, 1, 1, 0, -1, -3)],
        ),
    ],
)
def test_reshaping_and_penalties_of_the_worked_row(stages, history, expected):
    result = Pipeline(stages).apply(WORKED_ROW, history=[history])
    torch.testing.assert_close(result, torch.tensor([expected], dtype=torch.float32), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "parameter", "at", "above", "n_at", "n_above"),
    [
        ("top_p", "p", 0.5, 0.51, 2, 3),
        ("typical", "p", 0.5, 0.51, 2, 3),
        ("epsilon_cutoff", "epsilon", 0.125, 0.126, 5, 3),
        ("min_p", "p", 0.5, 0.51, 5, 3),
    ],
)
def test_thresholds_are_inclusive(name, parameter, at, above, n_at, n_above):
    """Probabilities 1/4, 1/4, 1/4, 1/8, 1/8, at and just above a threshold that some of them meet exactly."""
    logits = torch.tensor([[2.0, 2.0, 2.0, 1.0, 1.0]], dtype=torch.float64) * math.log(2)
    for value, n_kept in ((at, n_at), (above, n_above)):
        assert Pipeline([{"stage": name, parameter: value}]).apply(logits).isfinite().sum() == n_kept


OFF = {
    "logit_bias": {"bias": {}},
    "no_repeat_ngram": {"n": 0},
    "min_new_tokens": {"min_new": 0, "eos_ids": [1]},
    "repetition_penalty": {"penalty": 1.0},
    "frequency_penalty": {"penalty": 0.0},
    "presence_penalty": {"penalty": 0.0},
    "dry": {"multiplier": 0.0},
    "top_n_sigma": {"n": 0},
    "top_k": {"k": 0},
    "typical": {"p": 1},
    "tail_free": {"z": 1},
    "top_a": {"a": 0},
    "eta_cutoff": {"epsilon": 0},
    "epsilon_cutoff": {"epsilon": 0},
    "top_p": {"p": 1},
    "min_p": {"p": 0},
    "xtc": {"probability": 0},
    "quadratic": {"factor": 0},
    "dynamic_temperature": {"low": 1, "high": 1},
    "temperature": {"temperature": 1},
}


@pytest.mark.parametrize("name", OFF)
def test_the_off_value_leaves_the_row_unchanged(name):
    logits = torch.randn(3, 40)
    history = [[1, 2, 1, 2]] * 3
    assert torch.equal(Pipeline([{"stage": name, **OFF[name]}]).apply(logits, history=history), logits)
    assert torch.equal(SAMPLERS[name](logits, history=history, **OFF[name]), logits)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, None], ids=["nan", "inf", "nothing"])
def test_errors_name_the_broken_row(name, bad):
    stage = cases.stage(random.Random(0), name, 50)
    logits = torch.randn(3, 50)
    logits[2] = -math.inf if bad is None else logits[2]
    logits[2, 7] = -math.inf if bad is None else bad
    for run in (Pipeline([stage]).apply, Pipeline([stage]).draw):
        with pytest.raises(InputError, match="row 2 of the logits has NaN"):
            run(logits, uniforms=[0.5] * 3)


INVALID = [
    ({"stage": "top_k", "k": -1}, r"top_k=-1 must be an integer >= 0; 0 turns it off"),
    ({"stage": "top_k", "k": 2.5}, r"top_k=2.5 must be an integer"),
    ({"stage": "mirostat_v2"}, r"mirostat_v2 needs tau \(setting mirostat_v2_tau\)"),
    ({"stage": "top_p", "p": 1.1}, r"top_p=1.1 must be a number from 0 to 1; 1 turns it off"),
    ({"stage": "top_p", "p": math.nan}, r"top_p=nan"),
    ({"stage": "top_p", "q": 0.5}, r"top_p has no parameter 'q'. .*It has: p, min_keep"),
    ({"stage": "min_p", "p": -0.1}, r"min_p=-0.1"),
    ({"stage": "typical", "p": [0.5, 2]}, r"typical=2"),
    ({"stage": "tail_free", "z": 2}, r"tail_free=2"),
    ({"stage": "top_a", "a": 1.5}, r"top_a=1.5"),
    ({"stage": "epsilon_cutoff", "epsilon": 1.0}, r"epsilon_cutoff=1.0 must be a number from 0 to below 1"),
    ({"stage": "eta_cutoff", "epsilon": 1.0}, r"eta_cutoff=1.0"),
    ({"stage": "top_n_sigma", "n": -1}, r"top_n_sigma=-1"),
    ({"stage": "top_n_sigma", "n": 1, "min_keep": 0}, r"min_keep=0"),
    ({"stage": "xtc", "probability": 0.5, "threshold": 0}, r"xtc_threshold=0 must be a number above 0 to 1"),
    ({"stage": "xtc", "probability": 1.5}, r"xtc_probability=1.5"),
    ({"stage": "temperature", "temperature": -1}, r"temperature=-1"),
    ({"stage": "temperature", "temperature": math.inf}, r"temperature=inf must be finite: a number >= 0"),
    ({"stage": "temperature", "temperature": "hot"}, r"temperature='hot'"),
    ({"stage": "temperature", "temperature": True}, r"temperature=True"),
    ({"stage": "dynamic_temperature", "low": 1.5, "high": 0.5}, r"low=1.5 is above dynamic_temperature_high=0.5"),
    ({"stage": "quadratic", "factor": 0.5, "curve": 3.1}, r"curve=3.1 must be a number from 1 to 3"),
    ({"stage": "quadratic", "factor": -0.5}, r"factor=-0.5"),
    ({"stage": "repetition_penalty", "penalty": 0}, r"repetition_penalty=0 must be a number > 0"),
    ({"stage": "repetition_penalty", "penalty": 1.1, "scope": "prompt"}, r"scope='prompt' must be 'all'"),
    ({"stage": "repetition_penalty", "penalty": 1.1, "window": -1}, r"window=-1"),
    ({"stage": "frequency_penalty", "penalty": math.inf}, r"frequency_penalty=inf must be finite: a number"),
    ({"stage": "dry", "multiplier": 1, "base": 0.9}, r"base=0.9"),
    ({"stage": "dry", "multiplier": 1, "allowed_length": 0}, r"allowed_length=0"),
    ({"stage": "dry", "multiplier": 1, "breakers": [-1]}, r"breakers=\[-1\] must be token ids"),
    ({"stage": "logit_bias", "bias": {3: math.inf}}, r"gives token 3 the value inf"),
    ({"stage": "logit_bias", "bias": {3: math.nan}}, r"gives token 3 the value nan"),
    ({"stage": "logit_bias", "bias": {-3: 1.0}}, r"names token -3"),
    ({"stage": "logit_bias", "bias": [1, 2]}, r"must be {token id: value}"),
    ({"stage": "no_repeat_ngram", "n": -1}, r"no_repeat_ngram=-1"),
    ({"stage": "mirostat_v2", "tau": 0}, r"tau=0 must be a number > 0"),
    ({"stage": "mirostat_v1", "tau": 3, "m": 1}, r"m=1"),
    ({"stage": "topp", "p": 0.5}, r"no sampler named 'topp'. Did you mean 'top_p'\?"),
    ({"k": 3}, "a stage without a name"),
]


@pytest.mark.parametrize(("stage", "message"), INVALID, ids=lambda v: str(v)[:40])
def test_invalid_settings_are_refused_when_the_pipeline_is_built(stage, message):
    with pytest.raises(ConfigError, match=message):
        Pipeline([stage])


def test_parameters_default_to_off():
    for name in SAMPLERS:
        if not name.startswith("mirostat"):
            assert torch.equal(Pipeline([{"stage": name}]).apply(WORKED_ROW, history=[[0, 1, 0]]), WORKED_ROW)


def test_a_bias_outside_the_vocabulary_is_refused():
    pipe = Pipeline([{"stage": "logit_bias", "bias": {9: 1.0}}])
    with pytest.raises(InputError, match="names token 9: the vocabulary has ids 0 to 5"):
        pipe.apply(WORKED_ROW)


@pytest.mark.parametrize("name", [*cases.FILTERS, "xtc", "mirostat_v1", "mirostat_v2"])
def test_kept_logits_are_unchanged_and_one_token_survives(name):
    rng = random.Random(name)
    for _ in range(30):
        V = rng.choice([2, 9, 80, 500])
        logits = torch.tensor([cases.row(rng, V) for _ in range(3)])
        result = Pipeline([cases.stage(rng, name, V)]).apply(logits, uniforms=[0.1] * 3, mu=1.5)
        kept = result > -math.inf
        assert kept.any(dim=-1).all()
        assert torch.equal(result[kept], logits[kept])


@pytest.mark.parametrize("name", [name for name in NAMES if name != "repetition_penalty"])
def test_adding_a_constant_changes_no_kept_set(name):
    """Logits are multiples of 1/16, so that sums are exact."""
    rng = random.Random(name)
    for _ in range(20):
        logits = (torch.tensor([[rng.gauss(0, 2) for _ in range(30)]]) * 16).round() / 16
        pipe = Pipeline([cases.stage(rng, name, 30)])
        context = {"history": [cases.history(rng, 30)], "uniforms": [0.3], "mu": [2.0]}
        assert torch.equal(pipe.apply(logits, **context).isfinite(), pipe.apply(logits + 7.5, **context).isfinite())


@pytest.mark.parametrize("name", [*cases.FILTERS, "mirostat_v1", "mirostat_v2", "dynamic_temperature", "quadratic"])
def test_permuting_token_ids_permutes_the_result(name):
    rng = random.Random(name)
    for seed in range(15):
        logits = torch.randn(1, 60, generator=torch.Generator().manual_seed(seed))
        shuffle = torch.randperm(60, generator=torch.Generator().manual_seed(seed))
        pipe = Pipeline([cases.stage(rng, name, 60)])
        torch.testing.assert_close(pipe.apply(logits, mu=2.0)[:, shuffle], pipe.apply(logits[:, shuffle], mu=2.0))


@pytest.mark.parametrize(
    ("name", "parameter", "values"),
    [
        ("top_k", "k", [1, 2, 5, 20, 60]),
        ("top_p", "p", [0, 0.1, 0.5, 0.9, 0.99]),
        ("typical", "p", [0, 0.1, 0.5, 0.9, 0.99]),
        ("tail_free", "z", [0, 0.1, 0.5, 0.9, 0.99]),
        ("top_n_sigma", "n", [0.1, 0.5, 1, 2, 4]),
        ("min_p", "p", [1, 0.5, 0.1, 0.01, 0.001]),
        ("top_a", "a", [1, 0.5, 0.1, 0.01, 0.001]),
        ("epsilon_cutoff", "epsilon", [0.5, 0.1, 0.01, 1e-3, 1e-4]),
        ("eta_cutoff", "epsilon", [0.5, 0.1, 0.01, 1e-3, 1e-4]),
    ],
)
def test_weaker_settings_keep_a_superset(name, parameter, values):
    logits = 3 * torch.randn(50, 80, generator=torch.Generator().manual_seed(0))
    kept = [Pipeline([{"stage": name, parameter: value}]).apply(logits).isfinite() for value in values]
    for fewer, more in itertools.pairwise(kept):
        assert not (fewer & ~more).any()
    assert kept[0].sum() < kept[-1].sum()


def test_top_n_sigma_and_top_k_keep_the_same_set_after_reshaping():
    logits = torch.randn(40, 70, generator=torch.Generator().manual_seed(1))
    top_k = {"stage": "top_k", "k": 9}
    for stage in ({"stage": "top_n_sigma", "n": 0.7}, top_k):
        kept = Pipeline([stage]).apply(logits).isfinite()
        for temperature in (0.3, 1.7, 10.0):
            pipe = Pipeline([{"stage": "temperature", "temperature": temperature}, stage])
            assert torch.equal(pipe.apply(logits).isfinite(), kept)
    smoothed = Pipeline([{"stage": "quadratic", "factor": 0.4, "curve": 1.5}, top_k])
    assert torch.equal(smoothed.apply(logits).isfinite(), Pipeline([top_k]).apply(logits).isfinite())


@pytest.mark.parametrize("seed", range(10))
def test_dry_equals_a_brute_force_matcher(seed):
    rng = random.Random(seed)
    for _ in range(20):
        n_symbols = rng.randint(3, 5)
        history = [rng.randrange(n_symbols) for _ in range(rng.randint(0, 60))]
        if rng.random() < 0.3:  # deep inside a verbatim repeat
            history = history[:10] * rng.randint(2, 6) + history[: rng.randint(0, 10)]
        stage = {"stage": "dry", "multiplier": 1.0, "base": 1.2, "allowed_length": rng.randint(1, 4)}
        stage["breakers"] = rng.sample(range(n_symbols), rng.randint(0, 2))
        result = Pipeline([stage]).apply(torch.zeros(1, 6), history=[history])
        assert cases.same_row(result[0], reference.apply([stage], [0.0] * 6, history=history))


def test_dry_handles_32k_tokens_of_one_repeat():
    """The worst case for a matcher that goes position by position."""
    n = 32_768
    history = History.of([[1] * n, [1, 2] * (n // 2)], None, 2, torch.device("cpu"))
    longest = repeats(history, torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 0, dtype=torch.long), 4)
    assert longest.tolist() == [[0, n - 1, 0, 0], [0, n - 2, 0, 0]]


def test_a_ban_never_empties_a_row():
    only_the_best = [2, *[-math.inf] * 5]
    ban_all = Pipeline([{"stage": "logit_bias", "bias": dict.fromkeys(range(6), -math.inf)}])
    assert ban_all.apply(WORKED_ROW)[0].tolist() == only_the_best
    ban_used = Pipeline([{"stage": "no_repeat_ngram", "n": 1}])
    assert ban_used.apply(WORKED_ROW, history=[[0, 1, 2, 3, 4, 5]])[0].tolist() == only_the_best


def test_samplers_can_be_called_directly():
    assert SAMPLERS["top_k"](WORKED_ROW, k=2).isfinite().sum() == 2
    result = SAMPLERS["repetition_penalty"](WORKED_ROW, penalty=2.0, history=[[0]])
    assert result[0, 0] == 1.0
    with pytest.raises(ConfigError, match=r"temperature takes 1 parameters \(temperature\), but got 2 values"):
        SAMPLERS["temperature"](WORKED_ROW, 1.0, 2.0)


def test_half_precision_is_converted_to_float32():
    for dtype in (torch.float16, torch.bfloat16):
        assert Pipeline([{"stage": "top_k", "k": 2}]).apply(WORKED_ROW.to(dtype)).dtype == torch.float32


def test_quadratic_keeps_distant_tokens_finite():
    result = Pipeline([{"stage": "quadratic", "factor": 1.0, "curve": 3.0}]).apply(torch.tensor([[0.0, -1e30]]))
    assert result.isfinite().all()


def test_reshaping_makes_no_new_ties():
    """In float32 these logits would become equal, and the lower id would win."""
    for stage in ({"stage": "quadratic", "factor": 0.2}, {"stage": "dynamic_temperature", "low": 1.7, "high": 1.9}):
        pipe = Pipeline([stage, {"stage": "top_k", "k": 1}])
        assert pipe.apply(torch.tensor([[4.0, 4.001]])).isfinite().tolist() == [[False, True]]
    close = torch.tensor([[1.0, 1.0 + 2**-23, 1.0 + 2**-22]])
    for temperature in (0.3, 1.7, 3.0, 77.0):
        pipe = Pipeline([{"stage": "temperature", "temperature": temperature}, {"stage": "top_p", "p": 0.0}])
        assert pipe.apply(close).isfinite().tolist() == [[False, False, True]]


def test_typical_ranks_underflowing_tokens_before_removed_ones():
    pipe = Pipeline([{"stage": "typical", "p": 0.5, "min_keep": 2}])
    assert pipe.apply(torch.tensor([[-math.inf, 0.0, -2000.0]])).isfinite().tolist() == [[False, True, True]]
    assert pipe.apply(torch.tensor([[0.0, -2000.0, -1000.0]])).isfinite().tolist() == [[True, False, True]]


@pytest.mark.parametrize("mu", range(1, 12))
def test_mirostat_v1_keeps_two_to_the_mu_of_a_flat_row(mu):
    result = Pipeline([{"stage": "mirostat_v1", "tau": 3.0}]).apply(torch.zeros(1, 5000), mu=float(mu))
    assert result.isfinite().sum() == 2**mu


@pytest.mark.parametrize("name", NAMES)
def test_extreme_parameters_never_make_nan_or_infinity(name):
    huge = {
        "temperature": {"temperature": 1e39}, "frequency_penalty": {"penalty": 1e39},
        "presence_penalty": {"penalty": -1e39}, "repetition_penalty": {"penalty": 1e-50},
        "logit_bias": {"bias": {0: 1e39}}, "quadratic": {"factor": 1e308, "curve": 2},
        "dry": {"multiplier": 1e308, "base": 1e9}, "dynamic_temperature": {"low": 0, "high": 1e300},
        "top_n_sigma": {"n": 1e308}, "mirostat_v1": {"tau": 1e300}, "mirostat_v2": {"tau": 1e300},
    }  # fmt: skip
    if name not in huge:
        pytest.skip("its parameters are bounded")
    logits = torch.tensor([[1.0, -math.inf, -3e38, 5.0, 3e38]])
    result = Pipeline([{"stage": name, **huge[name]}]).apply(logits, history=[[0, 3, 0, 3, 0]])
    assert not result.isnan().any()
    assert (result < math.inf).all()
    assert result[0, 1] == -math.inf
    assert result.isfinite().any()


@pytest.mark.parametrize("name", NAMES)
def test_empty_batches_work_and_empty_vocabularies_do_not(name):
    stage = cases.stage(random.Random(1), name, 20)
    assert Pipeline([stage]).apply(torch.zeros(0, 20), uniforms=[], mu=[]).shape == (0, 20)
    with pytest.raises(InputError, match="no columns"):
        Pipeline([stage]).apply(torch.zeros(2, 0), uniforms=0.5)


def test_values_may_be_python_numpy_or_torch():
    numpy = pytest.importorskip("numpy")
    logits = numpy.array([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    for k in (numpy.int64(2), torch.tensor(2), [2, 2], torch.tensor([[2], [2]]), numpy.array([2, 2]), 2.0):
        assert Pipeline([{"stage": "top_k", "k": k}]).apply(logits).isfinite().sum() == 4
    for ids in ([0], {0}, (0,), 0, torch.tensor([0]), numpy.array([0]), torch.tensor(0)):
        pipe = Pipeline([{"stage": "min_new_tokens", "min_new": 1, "eos_ids": ids}])
        assert pipe.apply(logits).isfinite().tolist() == [[False, True, True]] * 2
    assert Pipeline([{"stage": "logit_bias", "bias": {"1": 2}}]).apply(logits)[0].tolist() == [3.0, 4.0, 1.0]
    assert SAMPLERS["top_k"](logits, 1).isfinite().sum() == 2
    lengths = ([[0, 1], [2, 0]], [2, 1])
    pipe = Pipeline([{"stage": "presence_penalty", "penalty": 1.0}])
    for history in (
        lengths,
        (numpy.array(lengths[0]), numpy.array(lengths[1])),
        (torch.tensor(lengths[0]), lengths[1]),
    ):
        assert pipe.apply(logits, history=history).tolist() == [[2.0, 1.0, 1.0], [1.0, 2.0, 2.0]]
    with pytest.raises(InputError, match="between 0 and the width 3"):
        pipe.apply(logits, history=(torch.zeros(2, 3).long(), torch.tensor([4, 0])))
    for bad in (None, 1.5, "a", [[None]]):
        with pytest.raises(ConfigError):
            Pipeline([{"stage": "dry", "multiplier": 1.0, "breakers": bad}])
        with pytest.raises(ConfigError):
            Pipeline([{"stage": "logit_bias", "bias": bad}])
    for bad in (10**19, 10**400):
        with pytest.raises(ConfigError, match="digits"):
            Pipeline([{"stage": "top_k", "k": bad}])
    for bad in (["top_k"], {"stage": "top_k", "k": 1}, [{"stage": [1]}]):
        with pytest.raises(ConfigError):
            Pipeline(bad)


def test_the_result_is_never_the_input_tensor():
    for stages in ([], [{"stage": "top_k", "k": 0}]):
        logits = torch.randn(2, 5)
        assert Pipeline(stages).apply(logits) is not logits
