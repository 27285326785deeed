"""Which models take the fused decode step, which on a CPU equals `GPT.step`. For Triton: test_decode_kernels.py."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import headway
from headway.generation.decode_loop import DecodeLoop
from headway.models import fused_rule
from headway.models.fused_decode import CPUDecodeStep
from headway.models.fused_rule import why_not_fused
from headway.nn import use_attention
from headway.nn.ablations import mask_after_softmax
from headway.nn.feedforward import GatedFeedForward
from headway.nn.kernels.cpu_decode import MAX_FUSED_ROWS, why_no_library
from headway.nn.kernels.cpu_linear import CPUKernels, onednn_linear
from headway.nn.linear import Linear, use_linear
from headway.nn.lora import add_lora
from headway.nn.positions import Positions, Rotary
from headway.sampling import Pipeline

EXCHANGED = {"vocab_size": 9, "context": 16, "n_layers": 2, "d_model": 64, "n_heads": 2, "positions": "rotary"}
needs_compiler = pytest.mark.skipif(why_no_library() is not None, reason="needs a C compiler with OpenMP")


def random_model(seed, device="cpu"):
    """A GPT of random parts and sizes."""
    rng = random.Random(seed)
    n_kv_heads, shared = rng.choice([1, 2]), rng.choice([1, 1, 2, 3])
    config = {
        "positions": rng.choice(["sinusoidal", "learned", "per-layer", "relative", "rotary", "alibi", "none"]),
        "norm": rng.choice(["layer", "rms", "none"]),
        "feed_forward": rng.choice(["relu", "gelu", "gelu-tanh", "swiglu", "relu2"]),
        "bias": rng.random() < 0.5,
        "tie_embeddings": rng.random() < 0.5,
        "scale_embeddings": rng.random() < 0.3,
        "n_heads": n_kv_heads * shared,
        "n_kv_heads": n_kv_heads,
        "d_head": rng.choice([2, 6, 8, 16]),
        "d_model": rng.choice([8, 24, 40]),
        "d_ff": rng.choice([12, 40]),
        "n_layers": rng.choice([1, 2]),
    }
    torch.manual_seed(seed)
    model = headway.create("gpt", vocab_size=50, context=300, device=device, **config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, None),
        ({"positions": "rotary", "norm": "rms", "feed_forward": "swiglu", "n_kv_heads": 1}, None),
        ({"norm_order": "post"}, "norm_order='post'"),
        ({"residual": "none"}, "residual='none'"),
        ({"similarity": "cosine"}, "similarity='cosine'"),
        ({"attention_scale": "none"}, "attention_scale='none'"),
        ({"attention_mask": "after-softmax"}, "attention_mask='after-softmax'"),
        ({"d_head": 3}, "d_head=3 is odd"),
    ],
)
def test_the_rule_for_the_fused_path_names_what_does_not_fit(settings, reason, monkeypatch):
    monkeypatch.setattr(fused_rule, "why_no_cpu_library", lambda: None)
    found = why_not_fused(headway.create("gpt-tiny", **settings).eval())
    assert found is None if reason is None else reason in found


def test_a_model_whose_parts_were_replaced_takes_the_plain_path(monkeypatch):
    monkeypatch.setattr(fused_rule, "why_no_cpu_library", lambda: None)
    assert why_not_fused(headway.create("lstm", vocab_size=9, d_model=8)) == "RNN is not a GPT"
    assert "float64" in why_not_fused(headway.create("gpt-tiny", dtype="float64"))
    assert "no kernels for meta" in why_not_fused(headway.create("gpt-tiny", device="meta").eval())
    assert why_not_fused(headway.create("gpt-tiny").train()) == "it is in training mode"
    assert why_not_fused(use_attention(headway.create("gpt-tiny").eval(), "reference")) is None
    replaced = use_attention(headway.create("gpt-tiny").eval(), mask_after_softmax)
    assert why_not_fused(replaced) == "its attention function has been replaced"
    replaced = use_linear(headway.create("gpt-tiny").eval(), lambda x, weight, bias: F.linear(x, weight, bias))
    assert why_not_fused(replaced) == "a matrix product has been replaced"
    monkeypatch.setattr(fused_rule, "why_no_cpu_library", lambda: "there is no C compiler")
    with pytest.warns(UserWarning, match="no C compiler"):
        assert "no C compiler" in why_not_fused(headway.create("gpt-tiny").eval())


class OtherPositions(Rotary):
    pass


class Wrapper(torch.Tensor):
    """A subclass, as quantised weights are: its memory need not be what it seems."""


def replace_part(model, path, value):
    """Set a part or an attribute: replace_part(model, "blocks.0.norm1", …)."""
    *owners, name = path.split(".")
    owner = model.get_submodule(".".join(owners))
    setattr(owner, name, value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("blocks.0.feed_forward.activation", torch.tanh),
        ("blocks.0.feed_forward", nn.Identity().eval()),
        ("blocks.0.feed_forward", GatedFeedForward(64, 256).eval()),
        ("blocks.0.dropout", nn.RMSNorm(64, eps=1e-5).eval()),
        ("dropout", nn.LayerNorm(64).eval()),
        ("norm", Linear(64, 64).eval()),
        ("blocks.0.norm1", nn.Dropout().eval()),
        ("blocks.0.attention.qkv.weight", nn.Parameter(torch.ones(192, 64).as_subclass(Wrapper))),
        ("blocks.0.norm1", nn.LayerNorm(64, elementwise_affine=False)),
        ("blocks.0.norm1.eps", 0.1),
        ("blocks.0.norm_first", False),
        ("blocks.0.residual", False),
        ("blocks.0.forward", lambda x, ctx, cache=None: x),
        ("blocks.0.attention.scale", "none"),
        ("blocks.0.attention.similarity", "cosine"),
        ("blocks.0.dropout", nn.Dropout().train()),
        ("positions", OtherPositions(32, 10_000.0)),
        ("positions", Rotary(32, 500.0)),
        ("positions", Positions()),
        ("embedding.scale", 2.0),
        ("step", lambda ids, state: None),
        ("blocks.0.attention.qkv.weight", nn.Parameter(torch.ones(64, 192).t())),
        ("blocks.0.attention.qkv.weight", nn.Parameter(torch.ones(192, 64, dtype=torch.bfloat16))),
        ("blocks.0.attention.qkv.linear_fn", torch.add),
        ("blocks.0.attention.attention_fn", mask_after_softmax),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_model_with_one_replaced_part_takes_the_plain_path(path, value, monkeypatch):
    monkeypatch.setattr(fused_rule, "why_no_cpu_library", lambda: None)
    model = headway.create("gpt", **EXCHANGED).eval()
    assert why_not_fused(model) is None
    replace_part(model, path, value)
    assert why_not_fused(model) is not None


def test_hooks_and_autocast_take_the_plain_path(monkeypatch):
    monkeypatch.setattr(fused_rule, "why_no_cpu_library", lambda: None)
    model = headway.create("gpt", **EXCHANGED).eval()
    with torch.autocast("cpu", torch.bfloat16):
        assert why_not_fused(model) == "autocast is on"
    model.blocks[0].attention.register_forward_hook(lambda module, args, output: None)
    assert why_not_fused(model) == "it has hooks"
    model = headway.create("gpt", **EXCHANGED).eval()
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
    try:
        assert why_not_fused(model) == "it has hooks"
    finally:
        handle.remove()
    assert why_not_fused(model) is None


def test_products_of_ours_that_another_thread_uses_do_not_matter(monkeypatch):
    monkeypatch.setattr(fused_rule, "why_no_cpu_library", lambda: None)
    model = headway.create("gpt", **EXCHANGED).eval()
    with CPUKernels(model):
        assert why_not_fused(model) is None
    assert why_not_fused(use_linear(model, onednn_linear)) is None


def test_a_weight_that_is_no_parameter_takes_the_plain_path(monkeypatch):
    monkeypatch.setattr(fused_rule, "why_no_cpu_library", lambda: None)
    model = headway.create("gpt", **EXCHANGED).eval()
    linear = model.blocks[0].attention.qkv
    weight = linear.weight.detach()
    del linear.weight
    linear.weight = weight.t().contiguous().t()
    assert why_not_fused(model) == "a weight is a Tensor, not a plain parameter"


# ── on a CPU ──────────────────────────────────────────────────────────────────────────────────────────────────────


def prefilled(model, rng):
    """A random prompt of several rows, equally long or not, in a cache; and the logits after it."""
    n_rows, n_prompt = rng.choice([1, 1, 2, MAX_FUSED_ROWS]), rng.choice([1, 20, 70])
    lengths = rng.choice([None, torch.tensor([rng.randint(1, n_prompt) for _ in range(n_rows)])])
    ids = torch.randint(50, (n_rows, n_prompt))
    with torch.no_grad():
        return model.step(ids, model.start(n_rows, rng.choice([80, 200])), lengths, last=True)


@needs_compiler
@pytest.mark.parametrize("seed", range(60))
def test_the_fused_step_is_the_plain_step(seed):
    """The same greedy tokens, logits within 1e-5 of the largest, the same cache."""
    model, rng = random_model(seed), random.Random(seed)
    assert why_not_fused(model) is None
    _, state = prefilled(model, rng)
    fused_state = state.copy()
    step = CPUDecodeStep(model, fused_state)
    for _ in range(3):
        token = torch.randint(50, (state.batch_size, 1))
        with torch.no_grad():
            expected, state = model.step(token, state)
        assert step.fits(fused_state)
        logits, fused_state = step(model, token, fused_state)
        assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max()
        assert torch.equal(logits.argmax(-1), expected.argmax(-1))
    assert torch.equal(state.length, fused_state.length)
    for row, length in enumerate(state.length.tolist()):
        for plain, fused in ((state.keys, fused_state.keys), (state.values, fused_state.values)):
            torch.testing.assert_close(plain[:, row, :, :length], fused[:, row, :, :length], rtol=1e-4, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_dtype_changes_nothing(dtype):
    """The C code writes float32: with a default of 16 bits it once wrote past the end of its buffers."""
    model = random_model(5)
    expected, _ = decode(model, [[1, 2, 3]], 12, fuse=True)
    torch.set_default_dtype(dtype)
    try:
        tokens, n_fused = decode(model, [[1, 2, 3]], 12, fuse=True)
    finally:
        torch.set_default_dtype(torch.float32)
    assert (tokens, n_fused) == (expected, 11)


def halve(model):
    for parameter in model.parameters():
        parameter.data = parameter.data * 0.5


def fresh_linear(model):
    torch.manual_seed(1)
    return Linear(64, model.config.d_ff).eval()


def randomise_lora(model):
    add_lora(model, rank=2, alpha=2.0)
    torch.manual_seed(2)
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.5)


CHANGES = {  # between two tokens: what they do, and whether steps are fused after them
    "in place": (lambda model: [parameter.data.mul_(0.5) for parameter in model.parameters()], True),
    "moved": (lambda model: model.share_memory(), True),
    "replaced data": (halve, True),
    "assigned": (
        lambda model: model.load_state_dict({n: 0.5 * p for n, p in model.state_dict().items()}, assign=True),
        True,
    ),
    "untied": (lambda model: setattr(model.embedding, "output", nn.Parameter(model.embedding.weight.flip(0))), True),
    "hooked": (lambda model: model.norm.register_forward_hook(lambda module, args, output: 2 * output), False),
    "replaced module": (lambda model: setattr(model.blocks[1].feed_forward, "up", fresh_linear(model)), True),
    "training mode": (lambda model: model.train(), False),
    "LoRA": (lambda model: randomise_lora(model), False),
    "other dtype": (lambda model: model.to(torch.float64).to(torch.float32), True),
}


@needs_compiler
@pytest.mark.parametrize("n_before", [1, 4])  # tokens: the first comes from the prefill
@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_changes_between_two_tokens_is_followed(change, n_before):
    apply, stays_fused = CHANGES[change]
    found = []
    for fuse in (False, True):
        model = headway.create("gpt", **EXCHANGED).eval()
        torch.manual_seed(0)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.5)
        loop = DecodeLoop(model, [[1, 2, 3]], Pipeline().greedy(), 12, seeds=[0])
        loop._model_step.is_fusable &= fuse
        tokens = [loop.step() for _ in range(n_before)]
        apply(model)
        tokens += [loop.step() for _ in range(4)]
        found.append(tokens)
        if fuse:
            assert loop._model_step.n_fused_steps == n_before - 1 + (4 if stays_fused else 0)
    assert found[0] == found[1]


@needs_compiler
@pytest.mark.parametrize("feed_forward", ["relu", "relu2", "gelu-tanh", "swiglu"])
def test_activations_of_huge_numbers(feed_forward):
    model = headway.create("gpt", **EXCHANGED | {"feed_forward": feed_forward, "n_layers": 1, "norm": "none"}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            nn.init.constant_(parameter, 1.0)
        up = model.blocks[0].feed_forward.gate_up if feed_forward == "swiglu" else model.blocks[0].feed_forward.up
        for value in (-torch.inf, -1e38, -100.0, 100.0):
            up.weight[0] = value
            state = model.start(1, 8)
            fused_state = state.copy()
            expected, _ = model.step(torch.tensor([[3]]), state)
            logits, _ = CPUDecodeStep(model, fused_state)(model, torch.tensor([[3]]), fused_state)
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


@needs_compiler
def test_the_number_of_threads_changes_nothing():
    model = random_model(5)
    _, state = prefilled(model, random.Random(0))
    token, n_threads, results = torch.zeros(state.batch_size, 1, dtype=torch.long), torch.get_num_threads(), []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            cache = state.copy()
            results.append(CPUDecodeStep(model, cache)(model, token, cache)[0])
    finally:
        torch.set_num_threads(n_threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def decode(model, prompts, n_new, *, fuse, ends=None):
    """Greedy tokens of each row, which finishes after `ends[row]`; and how many steps were fused."""
    loop = DecodeLoop(model, prompts, Pipeline().greedy(), n_new, seeds=range(len(prompts)))
    loop._model_step.is_fusable &= fuse
    tokens = [[] for _ in prompts]
    while loop.active:
        for row, _, token in loop.step():
            tokens[row].append(token)
            if len(tokens[row]) == (ends or [n_new] * len(prompts))[row]:
                loop.finish(row)
    return tokens, loop._model_step.n_fused_steps


@needs_compiler
@pytest.mark.parametrize("seed", range(20))
def test_the_loop_gives_the_plain_tokens(seed):
    """Prompts of any length, shared ones too; rows end at any time, and the batch is compacted."""
    model, rng = random_model(100 + seed), random.Random(seed)
    n_new = rng.randint(2, 30)
    prompts = [[rng.randrange(50) for _ in range(rng.randint(1, 40))] for _ in range(rng.randint(1, 6))]
    prompts += rng.choice([[], prompts[:1]])
    ends = [rng.randint(1, n_new) for _ in prompts]
    expected, _ = decode(model, prompts, n_new, fuse=False, ends=ends)
    assert decode(model, prompts, n_new, fuse=True, ends=ends)[0] == expected


@needs_compiler
def test_a_cache_that_grows_is_followed():
    model = headway.create("gpt", **EXCHANGED).eval()
    expected, n_plain = decode(model, [[1, 2, 3]], 60, fuse=False)  # the context is 16
    tokens, n_fused = decode(model, [[1, 2, 3]], 60, fuse=True)
    assert tokens == expected
    assert n_plain == 0
    assert n_fused > 50


@needs_compiler
def test_damaged_weights_are_still_an_error():
    model = headway.create("gpt", **EXCHANGED).eval()
    loop = DecodeLoop(model, [[1, 2]], Pipeline().greedy(), 4, seeds=[0])
    loop.step()
    with torch.no_grad():
        model.blocks[1].attention.qkv.weight.fill_(float("nan"))
    with pytest.raises(headway.errors.InputError, match="has NaN"):
        loop.step()


@needs_compiler
def test_many_rows_take_the_plain_path():
    model = headway.create("gpt", **EXCHANGED).eval()
    assert decode(model, [[1]] * MAX_FUSED_ROWS, 5, fuse=True)[1] > 0
    assert decode(model, [[1]] * (MAX_FUSED_ROWS + 1), 5, fuse=True)[1] == 0
