"""Reports of costs: the lectures' figures and quizzes, states as models allocate them, bounds, budgets, devices."""

import random

import pytest

import headway
from headway.config import FAMILIES, model_config
from headway.config.presets import PRESETS
from headway.config.published import NOT_BUILDABLE, PUBLISHED
from headway.costs import (
    Memory,
    TrainingBudget,
    count_parameters,
    count_pass,
    decode_state,
    find_device,
    parameter_table,
)
from headway.costs.budget import parallelism
from headway.costs.devices import DEVICES_VARIABLE, _read_devices, match_device
from headway.costs.formula import symbols
from headway.costs.operations import can_decode, has_source, product, product_elements, product_flops
from headway.costs.rendering import render_comparison, render_explanation, render_report
from headway.costs.report import cost_report
from headway.costs.roofline import Rates, lower_bound_seconds
from headway.errors import ConfigError
from tests.costs.test_operations import CONFIGS

b, n, d, k = symbols("b n d k")


def squeezed(text):
    return " ".join(text.split())


# ── parameters ────────────────────────────────────────────────────────────────────────────────────────────────────


def random_config(family, rng):
    """A small config with every size and part drawn at random."""
    n_heads = rng.choice([1, 2, 3, 4])
    choices = {
        "vocab_size": rng.randint(5, 60),
        "context": rng.randint(4, 40),
        "n_layers": rng.randint(1, 3),
        "n_encoder_layers": rng.randint(1, 3),
        "n_decoder_layers": rng.choice([None, 1, 3]),
        "n_heads": n_heads,
        "n_kv_heads": rng.choice([None, 1]),
        "d_model": n_heads * rng.choice([4, 8]),
        "d_head": rng.choice([None, 6]),
        "d_ff": rng.choice([None, 7, 32]),
        "d_hidden": rng.randint(2, 20),
        "d_attention": rng.choice([None, 5]),
        "order": rng.randint(2, 5),
        "direct": rng.random() < 0.5,
        "cell": rng.choice(["tanh", "relu", "lstm", "gru", "peephole"]),
        "positions": rng.choice(["sinusoidal", "learned", "per-layer", "relative", "rotary", "alibi"]),
        "norm": rng.choice(["layer", "rms"]),
        "norm_order": rng.choice(["pre", "post"]),
        "feed_forward": rng.choice(["relu", "gelu", "gelu-tanh", "swiglu", "relu2"]),
        "bias": rng.random() < 0.5,
        "tie_embeddings": rng.random() < 0.5,
        "n_segments": rng.randint(1, 3),
        "n_buckets": rng.randint(1, 30),
    }
    fields = FAMILIES[family].__struct_fields__
    if family == "bahdanau":
        choices["n_encoder_layers"] = rng.randint(1, 2)
    return model_config(family, {name: value for name, value in choices.items() if name in fields})


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "ngram"])
def test_a_hundred_random_configs_are_counted_exactly(family):
    for seed in range(100):
        config = random_config(family, random.Random(seed))
        assert count_parameters(config) == headway.create(config, device="meta").n_params, config


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_counted_exactly(name):
    assert count_parameters(PRESETS[name]) == headway.create(name, device="meta").n_params


def test_the_lectures_transformer_has_its_components():
    """LECTURES §A: 20,480,000 + 12d²·6 + 16d²·6 and biases and norms; the slide prints 62M."""
    table = parameter_table(model_config("transformer", {"vocab_size": 40_000}))
    groups = {group: sum(map(table.count, parts)) for group, parts in table.groups().items()}
    assert groups == {"embedding": 20_480_000, "encoder": 18_914_304, "decoder": 25_224_192}
    estimates = {group: table.estimate(parts)[1] for group, parts in table.groups().items()}
    assert (estimates["encoder"], estimates["decoder"]) == (18_874_368, 25_165_824)
    assert table.total == 64_618_496
    report = cost_report(model_config("transformer", {"vocab_size": 40_000}))
    assert any("62M" in note for note in report.notes())


def test_gpt3_is_12_d2_l_and_some():
    """LECTURES §A, an exercise: 12d²L = 173,946,175,488; exact: 174,604,259,328."""
    table = parameter_table(PRESETS["gpt3-175b"])
    assert table.estimate(table.groups()["layers"]) == ("12 d² × 96", 173_946_175_488)
    assert table.total == 174_604_259_328


def test_published_models_are_presets_and_those_that_are_not_say_why():
    assert set(PUBLISHED) <= set(PRESETS)
    assert not set(NOT_BUILDABLE) & set(PRESETS)
    assert all(model.reason for model in NOT_BUILDABLE.values())
    assert count_parameters(PRESETS["llama-65b"]) == 65_285_660_672


# ── quizzes of the lectures ───────────────────────────────────────────────────────────────────────────────────────


def test_quiz_9_operations_and_io_of_a_product():
    """(n×m)(m×k): 2nmk operations; nm + mk + nk elements, where the slide's last term is wrong."""
    assert product_flops(2, 3, 5) == 60
    assert product_elements(2, 3, 5) == 6 + 15 + 10


def test_quiz_10_the_q_projection_of_one_head_and_of_all():
    one, every = product("Q of a head", "layer", n, d, k), product("Q", "layer", n, d, d)
    assert str(one.flops) == "2 b n k d"
    assert str(every.flops) == "2 b n d²"
    assert str(every.elements) == "d² + 2 b n d"


def test_quiz_11_the_kv_cache():
    """2ndL numbers: 75,497,472 bytes for GPT-2 in float32, 9,663,676,416 for GPT-3 with 2,048 tokens in 16 bits."""
    state = decode_state(PRESETS["gpt2"], seq_len=1024)
    assert str(state.elements) == "2 b n d L"
    assert state.nbytes == 75_497_472
    assert decode_state(PRESETS["gpt3-175b"], seq_len=2048, bytes_per_element=2).nbytes == 9_663_676_416
    assert decode_state(PRESETS["gpt2"], seq_len=1024, window=256).nbytes == 75_497_472 // 4
    grouped = decode_state(PRESETS["llama-3-8b"], seq_len=100, bytes_per_element=2)
    assert grouped.nbytes == 2 * 100 * 8 * 128 * 32 * 2


def test_a_slide_about_gpt2_xl_is_corrected():
    assert any("25" in note for note in cost_report(PRESETS["gpt2-xl"]).notes())


# ── the state of decoding ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", [family for family in CONFIGS if can_decode(model_config(family))])
def test_the_state_has_the_predicted_size(family):
    import torch

    for variant in CONFIGS[family]:
        config = model_config(family, variant)
        model = headway.create(config).eval()
        source = {"source": torch.randint(5, 40, (3, 5))} if has_source(config) else {"batch_size": 3}
        state = model.start(**source, capacity=8)
        _, state = model.step(torch.randint(5, 40, (3, 8)), state)
        predicted = decode_state(config, batch_size=3, seq_len=8, source_len=5)
        assert predicted.nbytes == state.nbytes, variant


def test_the_state_of_ngrams_is_their_context():
    import torch

    for order in (1, 2, 4):
        config = model_config("ngram", {"order": order, "vocab_size": 41})
        state = headway.create(config).start(batch_size=3)
        assert decode_state(config, batch_size=3, seq_len=9).nbytes == state.tokens.nbytes == 3 * (order - 1) * 8
        assert isinstance(state.tokens, torch.Tensor)


def test_training_memory_counts_the_source():
    config = PRESETS["transformer-base"]
    activations = {
        source_len: cost_report(config, seq_len=64, source_len=source_len).training_memory().activations
        for source_len in (64, 640)
    }
    assert 4 < activations[640] / activations[64] < 10


# ── generation, bounds, budgets ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("window", [None, 3, 12, 15, 100])
def test_a_generation_is_the_sum_of_its_steps(window):
    config = PRESETS["llama-mini"]
    report = cost_report(config, seq_len=10, new_tokens=9, batch_size=2, window=window)
    expected = count_pass(config, "prefill", batch_size=2, seq_len=10, window=window).total_flops
    for n_keys in range(11, 19):
        visible = n_keys if window is None else min(window, n_keys)
        expected += count_pass(config, "decode", batch_size=2, seq_len=visible).total_flops
    assert report.generation_flops == expected


@pytest.mark.parametrize("window", [None, 3, 10, 11, 12, 15, 100])
def test_without_a_cache_every_token_is_a_prefill(window):
    config = PRESETS["gpt-mini"]
    report = cost_report(config, seq_len=10, new_tokens=7, window=window)
    expected = sum(count_pass(config, "prefill", seq_len=10 + i, window=window).total_flops for i in range(7))
    assert report.uncached_generation_flops == expected


@pytest.mark.parametrize(("source_len", "new_tokens"), [(5, 2), (40, 6), (3, 1)])
def test_without_a_cache_a_source_is_encoded_once(source_len, new_tokens):
    config = PRESETS["transformer-mini"]
    report = cost_report(config, seq_len=4, source_len=source_len, new_tokens=new_tokens)
    expected = 0
    for i in range(new_tokens):
        prefill = count_pass(config, "prefill", seq_len=4 + i, source_len=source_len)
        operations = [o for o in prefill.operations if o.is_product and (i == 0 or o.stage != "encoder layer")]
        expected += sum(o.repeats * prefill.flops(o) for o in operations)
    assert report.uncached_generation_flops == expected


@pytest.mark.parametrize("name", ["gpt-mini", "llama-mini", "transformer-mini"])
@pytest.mark.parametrize("window", [1, 4, 10, 30])
def test_a_prefill_with_a_window_has_the_scores_inside_it(name, window):
    """n w of them, or those that the mask leaves: Σ min(i, w) over the tokens i = 1 … n."""
    config, n, batch_size = PRESETS[name], 10, 2
    counted = count_pass(config, "prefill", batch_size=batch_size, seq_len=n, window=window)
    full = count_pass(config, "prefill", batch_size=batch_size, seq_len=n)
    [scores, _, sums] = [o for o in counted.operations if o.name in ("scores", "softmax", "weighted sum")][-3:]
    c = config.resolved()
    per_score = 2 * batch_size * c.n_heads * c.d_head
    for operation in (scores, sums):
        assert counted.flops(operation) == per_score * n * min(n, window)
        visible = sum(min(i, window) for i in range(1, n + 1))
        assert operation.unmasked_flops.evaluate(counted.sizes) == per_score * visible
    if window >= n:
        assert (counted.total_flops, counted.unmasked_flops) == (full.total_flops, full.unmasked_flops)
    forward = count_pass(config, "forward", seq_len=n, window=window)  # which has no cache
    assert forward.total_flops == count_pass(config, "forward", seq_len=n).total_flops


def test_a_decode_step_takes_at_least_as_long_as_reading_weights_and_cache():
    """A 7B shape in 16 bits on a device that reads 1 TB/s: 13.2 GB of matrices, without embedding and norms."""
    config, rates = PRESETS["llama-2-7b"], Rates(flops_per_second=1e15, bandwidth=1e12)
    matrices = count_parameters(config) - 32_000 * 4096 - 65 * 4096
    assert lower_bound_seconds(count_pass(config, "decode", seq_len=1), 2, rates) == pytest.approx(
        2e-12 * matrices, rel=1e-3
    )
    many = count_pass(config, "forward", batch_size=64, seq_len=4096)  # compute-bound but for the scores' reads
    assert lower_bound_seconds(many, 2, rates) == pytest.approx(many.unmasked_flops / 1e15)
    scores = 2 * 32 * 2 * 64 * 4096 * 4096 * 4096  # and weighted sums, of all layers
    assert many.total_flops - many.unmasked_flops == scores * 4095 // (2 * 4096)


@pytest.mark.parametrize(("name", "seq_len"), [("gpt2", 1), ("gpt2", 1024), ("lstm", 20)])
def test_a_training_step_takes_as_long_as_its_forward_pass_and_the_products_of_its_backward_pass(name, seq_len):
    report = cost_report(model_config(name), seq_len=seq_len, device=find_device("h200"))
    forward = report.lower_bound_seconds(report.forward)
    backward = 2 * report.forward.unmasked_flops / 989e12
    assert report.training_lower_bound_seconds == pytest.approx(forward + backward, rel=0.05)


@pytest.mark.parametrize("mask", ["none", "after-softmax"])
def test_no_scores_are_skipped_where_all_are_computed(mask):
    counted = count_pass(model_config("gpt-mini", {"attention_mask": mask}), "forward", seq_len=64)
    assert counted.unmasked_flops == counted.total_flops


def test_ddp_needs_space_for_its_gradients():
    """Llama 2 7B at 4,096 tokens in bfloat16: weights, moments and gradients in float32 take 108 GB, copies of weights
    13 GB and activations 26 GB. An H200 has 141 GB."""
    sizes = {"seq_len": 4096, "device": find_device("h200")}
    one, eight = (cost_report(PRESETS["llama-2-7b"], n_devices=n, **sizes) for n in (1, 8))
    assert one.training_memory().total < 141e9 < eight.training_memory().total
    assert eight.parallelism.startswith("use FSDP")


def test_a_mask_after_the_softmax_saves_all_weights():
    """Two matrices of weights per head and layer, in float32."""
    full, masked = (
        cost_report(model_config("gpt-mini", {"attention_mask": mask}), batch_size=2, seq_len=128)
        .training_memory(device_type="cpu")
        .activations
        for mask in ("causal", "after-softmax")
    )
    assert masked - full >= 4 * 2 * 2 * 6 * 128 * 128 * 4  # bytes, matrices, rows, heads, weights, layers


def test_budgets():
    """Hoffmann et al. 2022: 70B parameters, 1.4T tokens, 5.76e23 FLOPs (they count a little less than 6ND)."""
    budget = TrainingBudget.compute_optimal(70_000_000_000)
    assert budget.n_tokens == 1.4e12
    assert budget.flops == pytest.approx(5.88e23)
    h100 = find_device("h100")
    assert budget.seconds(h100.peak("bfloat16"), 1000) == pytest.approx(5.88e23 / (1000 * 989e12 * 0.4))
    report = cost_report(PRESETS["gpt2"], device=h100, dtype="float32", n_devices=8)
    assert report.budget_seconds == pytest.approx(report.budget.flops / (8 * h100.peak("float32") * 0.4))


@pytest.mark.parametrize(
    ("n_params", "activations", "checkpointed", "n_devices", "batch_size", "advice"),
    [
        (124e6, 1e9, 1e8, 1, 8, "fits on one device"),
        (124e6, 1e12, 1e9, 1, 8, "fits on one device with train.checkpoint_activations=true"),
        (124e6, 1e9, 1e8, 8, 8, "use DDP: the whole training state fits on each device"),
        (7e9, 1e9, 1e8, 8, 8, "use FSDP: 112 GB of state over 8 devices (at least 2)"),
        (7e9, 1e12, 1e9, 8, 8, "use FSDP with train.checkpoint_activations=true: 112 GB of state over 8 devices"),
        (405e9, 1e9, 1e8, 8, 8, "needs more devices: FSDP over at least 91 × H100 with train.checkpoint_activations"),
        (7e9, 1e9, 1e8, 1, 8, "needs more devices: FSDP over at least 2 × H100"),
        (7e9, 2e12, 1e12, 8, 8, "1,000 GB of activations and logits per device, even with checkpointing: reduce the"),
        (7e9, 2e12, 1e12, 8, 1, "1,000 GB of activations and logits per device, even with checkpointing and one"),
    ],
)
def test_advice_on_parallelism(n_params, activations, checkpointed, n_devices, batch_size, advice):
    """AdamW in float32: 16 bytes per parameter, on H100s of 80 GB."""
    size = 4 * n_params
    full, small = (Memory(size, size, 2 * size, 0, a, 0) for a in (activations, checkpointed))
    assert parallelism(full, small, find_device("h100"), n_devices, batch_size).startswith(advice)


@pytest.mark.parametrize(
    ("family", "steps", "path"),
    [
        ("gpt", "1", "1 between two tokens"),
        ("lstm", "n", "n between two tokens"),
        ("seq2seq", "n + s", "s + n between two tokens"),
        ("bahdanau", "n + s", "1 from the source to a target token"),
        ("nplm", "1", "1 between two tokens of the window"),
        ("ngram", "0", "none: there are no layers"),
        ("bow", "0", "none: there are no layers"),
    ],
)
def test_sequential_steps_and_the_longest_path(family, steps, path):
    """Vaswani et al. 2017, Table 1."""
    report = cost_report(model_config(family))
    assert str(report.sequential_steps) in (steps, " + ".join(reversed(steps.split(" + "))))
    assert report.longest_path.startswith(path)


# ── devices ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_devices_are_found_by_name():
    assert find_device("rtx-4090").bandwidth == 1008e9
    assert find_device("H200").ridge("bfloat16") == pytest.approx(206, abs=1)
    assert match_device("NVIDIA A100-SXM4-80GB").memory == 80e9
    assert match_device("Radeon") is None
    assert find_device("nvidia-h100-pcie").bandwidth == 2000e9
    for wrong, hint in {"h20": "H200", "h100 foo": "H100", "a100 80gb": "A100", "A100-SXM4-40GB": "A100 40GB"}.items():
        with pytest.raises(ConfigError, match=f"no device named '{wrong}'. Did you mean '{hint}'"):
            find_device(wrong)
    assert cost_report(PRESETS["gpt2"], device=find_device("t4")).dtype == "float16"
    with pytest.raises(ConfigError, match="in float64 are not known"):
        cost_report(PRESETS["gpt2"], device=find_device("h200"), dtype="float64")


def test_devices_of_your_own(tmp_path, monkeypatch):
    file = tmp_path / "devices.toml"
    file.write_text('["My GPU"]\nbfloat16 = 100e12\nbandwidth = 1e12\nmemory = 24e9\n')
    monkeypatch.setenv(DEVICES_VARIABLE, str(file))
    assert find_device("my-gpu").peak("float16") == 100e12
    file.write_text('["NVIDIA H20"]\nbfloat16 = 1e12\nbandwidth = 1e12\nmemory = 24e9\n')  # with or without the vendor
    _read_devices.cache_clear()
    assert find_device("NVIDIA H20") == find_device("h20") == match_device("NVIDIA H20-SXM")
    file.write_text('["h100"]\nbfloat16 = 1e12\nbandwidth = 1e12\nmemory = 24e9\n')  # instead of that of the table
    _read_devices.cache_clear()
    assert find_device("H100").memory == match_device("NVIDIA H100 80GB HBM3").memory == 24e9
    for text, message in {
        '["My GPU"]\nbandwith = 1e12\n': "bandwith",
        '["My GPU"]\nbandwidth = -1\nmemory = 1\n': "bandwidth=-1.0 must be above 0",
        '["My GPU"]\nbandwidth = 1e12\nmemory = 24e9\n': "'My GPU' has no FLOP/s: add bfloat16",
        "[[": "is not a list of devices",
        "x = 1": "device 'x'",
    }.items():
        other = tmp_path / f"{len(text)}.toml"
        other.write_text(text)
        monkeypatch.setenv(DEVICES_VARIABLE, str(other))
        with pytest.raises(ConfigError, match=message):
            find_device("h200")
    monkeypatch.setenv(DEVICES_VARIABLE, str(tmp_path / "missing.toml"))
    with pytest.raises(ConfigError, match="missing"):
        find_device("h200")


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_table_of_gpt2():
    text = squeezed(render_report(cost_report(PRESETS["gpt2"], "gpt2", seq_len=1024)))
    for expected in (
        "sum, one 17,716,740,096 24 b n d² + 4 b n² d",
        "sum, all 12 212,600,881,152",
        "total 291,648,307,200",
        "total 284,812,800",
        "KV cache 75,497,472 bytes: 2 b n d L elements of 4 bytes",
        "estimate: matrices only 84,934,656 12 d² × 12",
        "the rest: biases, norms 121,344",
    ):
        assert expected in text


def test_the_explanation_fills_in_the_numbers():
    text = squeezed(render_explanation(cost_report(PRESETS["gpt2"], "gpt2", seq_len=1024)))
    assert "FLOPs 6 b n d² = 6 · 1 · 1,024 · 768² = 3,623,878,656" in text
    assert "elements 3 d² + 4 b n d = 3 · 768² + 4 · 1 · 1,024 · 768 = 4,915,200" in text
    assert "n m + m k + n k" in text
    assert "FLOPs 5 b n² h = 5 · 1 · 1,024² · 12 = 62,914,560; not a matrix product, and not in the totals" in text


def test_the_explanation_of_generation_training_and_bounds():
    sizes = {"seq_len": 64, "new_tokens": 5, "device": find_device("h200")}
    text = squeezed(render_explanation(cost_report(PRESETS["gpt2"], "gpt2", **sizes)))
    assert "11,099,825,664 (prefill) + 998,062,080 (decode steps at 65 to 68 tokens) = 12,097,887,744 FLOPs" in text
    assert "Adam moments: 8 P = 8 · 124,439,808 = 995,518,464 bytes" in text
    assert "6 P · tokens = 6 · 124,439,808 · 2,488,796,160 = 1.86e+18" in text
    assert "226,492,416 / (2 bytes · 1,966,080) = 57.6 FLOPs per byte: memory-bound, below 206" in text
    assert "Lower bounds: each matrix product at peak" in text
    assert "and each reads the weights again" in render_explanation(cost_report(model_config("lstm"), seq_len=8))


def test_a_layer_that_occurs_once_has_a_sum_too():
    text = squeezed(render_report(cost_report(model_config("gpt2", {"n_layers": 1}), seq_len=1024)))
    assert " sum 17,716,740,096 24 b n d² + 4 b n² d" in text


@pytest.mark.parametrize(
    ("family", "sizes", "notes"),
    [
        ("seq2seq", {"source_len": 1000}, ["1,000 source tokens exceed the model's context of 128"]),
        ("gpt2", {"new_tokens": 5}, ["1,029 tokens exceed the model's context of 1,024"]),
        ("bert", {"new_tokens": 5}, []),  # generates nothing
        ("gpt2", {"source_len": 5000}, []),  # reads no source
    ],
)
def test_notes_on_lengths_beyond_the_context(family, sizes, notes):
    assert cost_report(model_config(family), **sizes).notes() == notes


def test_tables_of_an_ngram_have_32_bits_whatever_the_dtype():
    reports = [cost_report(model_config("ngram"), seq_len=8, dtype=dtype) for dtype in ("float16", "float64")]
    assert (
        squeezed(render_report(reports[0])).partition("Forward")[2]
        == squeezed(render_report(reports[1])).partition("Forward")[2]
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_report(family):
    report = cost_report(model_config(family), family, seq_len=64, new_tokens=4, device=find_device("h200"))
    assert render_report(report)
    assert render_explanation(report)
    assert report.to_dict()["forward"]["flops"] == report.forward.total_flops
    assert family in render_comparison([report, report])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seq_len": 0}, "seq_len=0 must be from 1"),
        ({"batch_size": -2}, "batch_size=-2 must be from 1"),
        ({"new_tokens": 10**20}, "must be from 1 to 2,147,483,647"),
        ({"dtype": "int8"}, "dtype='int8' is not one of"),
    ],
)
def test_impossible_sizes_are_errors(settings, message):
    with pytest.raises(ConfigError, match=message):
        cost_report(PRESETS["gpt2"], **settings)
