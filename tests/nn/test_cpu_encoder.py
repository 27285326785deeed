"""Fused blocks equal `Block.forward`, and anything they cannot compute is left to it."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

import headway
from headway.models.tiny import create_tiny
from headway.nn import use_attention
from headway.nn.block import Block
from headway.nn.kernels import cpu_encoder, cpu_linear
from headway.nn.kernels.cpu_encoder import FusedBlock, encoder_kernels
from headway.nn.kernels.cpu_linear import CPUKernels
from headway.nn.lora import add_lora, block_layers, lora_layers, lora_merged
from headway.prediction import batching
from headway.prediction.batching import EncoderInput, run_encoder
from headway.training.train_step import checkpoint_blocks

VOCAB_SIZE, CONTEXT, N_LAYERS = 67, 20, 2
HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
needs_onednn = pytest.mark.skipif(not HAS_ONEDNN, reason="this PyTorch has no oneDNN")


@pytest.fixture
def onednn(monkeypatch):
    """oneDNN is the preferred library, whatever the processor."""
    monkeypatch.setattr(cpu_linear, "_prefers_onednn", lambda: True)


@pytest.fixture
def fused_blocks(monkeypatch):
    """A list with one entry per block that is computed by oneDNN."""
    calls = []
    product_plus = FusedBlock._product_plus

    def counted(self, residual, layer, x):
        if layer is self.block.feed_forward.down:
            calls.append(self.block)
        return product_plus(self, residual, layer, x)

    monkeypatch.setattr(FusedBlock, "_product_plus", counted)
    return calls


def make_model(family="bert", **overrides):
    """A small model whose matrices, biases and norms all matter, and just large enough for the kernels."""
    sizes = {"vocab_size": VOCAB_SIZE, "context": CONTEXT, "n_layers": N_LAYERS, "d_model": 128, "n_heads": 4}
    model = headway.create(family, **sizes, d_ff=512, **overrides).eval()
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():  # norms near 1, matrices that keep the scale of their input
            shift = 1.0 if parameter.dim() == 1 and bool((parameter == 1).all()) else 0.0
            parameter.copy_(shift + 0.08 * torch.randn(parameter.shape, generator=rng))
    return model


def make_batch(n_texts=3, n_tokens=13):
    """Token ids, and a mask with rows of different lengths, one of them a single token."""
    ids = torch.randint(VOCAB_SIZE, (n_texts, n_tokens), generator=torch.Generator().manual_seed(2))
    lengths = torch.tensor([n_tokens, 1, *range(2, n_texts)])[:n_texts]
    return ids, torch.arange(n_tokens) < lengths[:, None]


def assert_same(model, fused_blocks, *inputs, n_fused=N_LAYERS, pack=True):
    """The output with the kernels is the plain one, and `n_fused` blocks were fused."""
    with torch.no_grad():
        plain = model(*inputs)
        assert not fused_blocks  # nothing is exchanged unless someone asks
        with encoder_kernels(model, pack=pack) as kernels:
            assert_close(model(*inputs), plain, rtol=1e-5, atol=1e-5)
            assert len(fused_blocks) == n_fused
            if n_fused == N_LAYERS:
                block_kernels = [kernels.linear[layer, "linear_fn"] for layer in block_layers(model).values()]
                assert all((kernel.packed is not None) == pack for kernel in block_kernels)
            assert_close(model(*inputs), plain, rtol=1e-5, atol=1e-5)  # by now the weights are packed
        fused_blocks.clear()
        assert torch.equal(model(*inputs), plain)
        assert not fused_blocks


# ── it computes what the block does ───────────────────────────────────────────────────────────────────────────────


@needs_onednn
@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize(("norm_order", "bias"), list(product(("pre", "post"), (True, False))))
@pytest.mark.parametrize("feed_forward", ["relu", "gelu", "gelu-tanh"])
def test_fused_blocks_equal_plain_ones(fused_blocks, norm_order, bias, feed_forward):
    model = make_model(norm_order=norm_order, bias=bias, feed_forward=feed_forward)
    ids, mask = make_batch()
    assert_same(model, fused_blocks, ids)
    assert_same(model, fused_blocks, ids, mask)
    assert_same(model, fused_blocks, ids, mask, pack=False)


@needs_onednn
@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "per-layer", "relative", "rotary", "alibi"])
@pytest.mark.parametrize("family", ["bert", "gpt"])
def test_with_every_kind_of_positions(fused_blocks, family, positions):
    model = make_model(family, positions=positions)
    ids, mask = make_batch()
    assert_same(model, fused_blocks, ids, *([mask] if family == "bert" else []))


@needs_onednn
@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize(("norm", "n_kv_heads"), [("rms", 4), ("layer", 2), ("layer", 1)])
@pytest.mark.parametrize("attend", ["fast", "reference"])
def test_with_other_norms_grouped_heads_and_attention(fused_blocks, norm, n_kv_heads, attend):
    model = use_attention(make_model("gpt", norm=norm, n_kv_heads=n_kv_heads), attend)
    assert_same(model, fused_blocks, make_batch()[0])


@needs_onednn
@settings(max_examples=30)
@given(st.integers(1, 5), st.integers(1, CONTEXT), st.booleans(), st.integers(0, 2**16))
def test_any_batch_with_any_padding_equals_the_plain_one(n_texts, n_tokens, pack, seed):
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCAB_SIZE, (n_texts, n_tokens), generator=rng)
    mask = torch.arange(n_tokens) < torch.randint(1, n_tokens + 1, (n_texts, 1), generator=rng)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(cpu_linear, "_prefers_onednn", lambda: True)
        plain = MODEL(ids, mask)
        with encoder_kernels(MODEL, pack=pack):
            assert_close(MODEL(ids, mask), plain, rtol=1e-5, atol=1e-5)


MODEL = make_model()


@needs_onednn
@pytest.mark.usefixtures("onednn")
def test_inputs_that_are_not_contiguous(fused_blocks):
    block = make_model().blocks[0]
    x = torch.randn(128, 7, 3).transpose(0, 2)  # (3, 7, 128)
    with torch.inference_mode():
        plain = block(x, headway.nn.AttentionContext())
        with encoder_kernels(block):
            assert_close(block(x, headway.nn.AttentionContext()), plain, rtol=1e-5, atol=1e-5)
    assert len(fused_blocks) == 1


@needs_onednn
@pytest.mark.usefixtures("onednn")
def test_a_whole_translation_model_with_a_source(fused_blocks):
    """The encoder is fused. The decoder's blocks also attend to the source, so they are not."""
    model = make_model("transformer", bos_id=1, eos_id=2)
    ids, mask = make_batch()
    with torch.no_grad():
        plain = model(ids[:, :5], source=ids, source_mask=mask)
        with encoder_kernels(model):
            assert_close(model(ids[:, :5], source=ids, source_mask=mask), plain, rtol=1e-5, atol=1e-5)
    assert len(fused_blocks) == N_LAYERS


@needs_onednn
@pytest.mark.usefixtures("onednn")
def test_decoding_with_a_cache_is_left_to_the_block(fused_blocks):
    model, (ids, _) = make_model("gpt"), make_batch()
    with torch.no_grad():
        plain = model(ids)
        with encoder_kernels(model):
            state, logits = model.start(len(ids)), []
            for t in range(ids.shape[1]):
                step, state = model.step(ids[:, t : t + 1], state)
                logits.append(step)
    assert_close(torch.cat(logits, dim=1), plain, rtol=1e-4, atol=1e-4)
    assert not fused_blocks


# ── what it leaves to the block ───────────────────────────────────────────────────────────────────────────────────


@needs_onednn
@pytest.mark.usefixtures("onednn")
def test_gradients_are_the_plain_ones(fused_blocks):
    model, (ids, mask) = make_model(), make_batch()
    gradients = []
    for kernels in (CPUKernels(None), encoder_kernels(model)):
        with kernels:
            model(ids, mask).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.blocks.parameters()])
        model.zero_grad()
    assert not fused_blocks
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@needs_onednn
@pytest.mark.usefixtures("onednn")
def test_dropout_is_applied_if_it_is_on(fused_blocks):
    """Also if only the dropout layers are in training mode, as for Monte Carlo dropout (Gal & Ghahramani 2016)."""
    model, (ids, mask) = make_model(dropout=0.5), make_batch()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    with torch.no_grad():
        torch.manual_seed(3)
        plain = model(ids, mask)
        with encoder_kernels(model):
            torch.manual_seed(3)
            assert_close(model(ids, mask), plain, rtol=1e-5, atol=1e-5)
    assert not fused_blocks


@needs_onednn
@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("is_merged", [False, True])
def test_lora_layers_are_not_fused(fused_blocks, is_merged):
    model, (ids, mask) = add_lora(make_model(), rank=2, alpha=4.0), make_batch()
    for layer in lora_layers(model).values():
        nn.init.normal_(layer.lora_b, std=0.3)
    if not is_merged:
        assert_same(model, fused_blocks, ids, mask, n_fused=0)
        return
    with lora_merged(model):
        assert_same(model, fused_blocks, ids, mask, n_fused=0)


@needs_onednn
@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_are_not_fused(fused_blocks, dtype):
    assert_same(make_model().to(dtype), fused_blocks, *make_batch(), n_fused=0)


@needs_onednn
@pytest.mark.usefixtures("onednn")
def test_autocast_is_not_fused(fused_blocks):
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(make_model(), fused_blocks, *make_batch(), n_fused=0)


@needs_onednn
@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("feed_forward", ["swiglu", "relu2"])
def test_feed_forward_networks_without_a_post_op_are_not_fused(fused_blocks, feed_forward):
    assert_same(make_model(feed_forward=feed_forward), fused_blocks, *make_batch(), n_fused=0)


@needs_onednn
@pytest.mark.usefixtures("onednn")
def test_hooks_inside_a_block_are_called(fused_blocks):
    model, outputs = make_model(), []
    model.blocks[0].attention.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    model.blocks[1].register_forward_hook(lambda module, inputs, output: outputs.append(output))  # of a whole block
    assert_same(model, fused_blocks, *make_batch(), n_fused=1)
    assert len(outputs) == 2 * 4


@needs_onednn
@pytest.mark.usefixtures("onednn")
def test_blocks_of_another_class_are_not_fused(fused_blocks):
    class Doubled(Block):
        def forward(self, *args, **kwargs):
            return 2 * super().forward(*args, **kwargs)

    model = make_model()
    model.blocks[0].__class__ = Doubled
    assert_same(model, fused_blocks, *make_batch(), n_fused=1)


@needs_onednn
@pytest.mark.usefixtures("onednn")
def test_blocks_with_activation_checkpointing_are_not_fused(fused_blocks):
    model = make_model()
    checkpoint_blocks(model)
    replaced = [block.forward for block in model.blocks]
    assert_same(model, fused_blocks, *make_batch(), n_fused=0)
    assert [block.forward for block in model.blocks] == replaced


@needs_onednn
@pytest.mark.usefixtures("onednn")
def test_compiled_blocks_are_not_fused():
    model = make_model()
    model.blocks[0].compile(backend="eager")
    kernels = encoder_kernels(model).kernels
    assert [(block, "forward") in kernels for block in model.blocks] == [False, True]


@pytest.mark.parametrize("missing", ["_prefers_onednn", "can_pack"])
def test_without_onednn_nothing_is_fused(fused_blocks, monkeypatch, missing):
    """Another processor, or a PyTorch without these operators."""
    monkeypatch.setattr(cpu_linear, missing, lambda: False)
    monkeypatch.setattr(cpu_encoder, "can_pack", cpu_linear.can_pack)
    model = make_model()
    assert not any(name == "forward" for _, name in encoder_kernels(model).kernels)
    assert_same(model, fused_blocks, *make_batch(), n_fused=0)


@pytest.mark.parametrize("operator", ["_linear_pointwise", "_reorder_linear_weight"])
def test_a_pytorch_without_the_operators_is_recognised(monkeypatch, operator):
    class Operators:
        """`torch.ops.mkldnn`, less one."""

        def __getattr__(self, name):
            if name == operator:
                raise AttributeError(name)
            return lambda *args: None

    monkeypatch.setattr(torch.ops, "mkldnn", Operators())
    cpu_linear._prefers_onednn.cache_clear()
    try:
        assert not cpu_linear.can_pack()
    finally:
        cpu_linear._prefers_onednn.cache_clear()


def test_nothing_is_exchanged_on_another_device(monkeypatch):
    monkeypatch.setattr(cpu_linear, "_prefers_onednn", lambda: True)
    assert not encoder_kernels(headway.create("bert", n_layers=1, device="meta")).kernels


# ── it is a context ───────────────────────────────────────────────────────────────────────────────────────────────


@needs_onednn
@pytest.mark.usefixtures("onednn")
def test_nested_contexts_share_the_outer_kernels_and_restore_the_blocks():
    model = make_model()
    block, layer = model.blocks[0], model.blocks[0].feed_forward.up
    outer, inner, plain = encoder_kernels(model), encoder_kernels(model), layer.linear_fn
    with outer:
        used = block.forward
        assert isinstance(used, FusedBlock)
        with inner, outer, CPUKernels(model):
            assert block.forward is used
        assert block.forward is used
    assert "forward" not in block.__dict__
    assert layer.linear_fn is plain
    with CPUKernels(model), encoder_kernels(model):
        assert "forward" not in block.__dict__  # the outermost context decides
    assert layer.linear_fn is plain
    with outer:  # it can be entered again
        assert block.forward is used
    assert "forward" not in block.__dict__


@needs_onednn
@pytest.mark.usefixtures("onednn")
def test_an_error_inside_the_context_restores_the_blocks():
    model = make_model()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), encoder_kernels(model):
            1 / 0  # noqa: B018
        assert all("forward" not in block.__dict__ for block in model.blocks)


@needs_onednn
@pytest.mark.usefixtures("onednn")
def test_predictions_use_the_kernels_and_equal_the_model(fused_blocks):
    model, rng = make_model(), torch.Generator().manual_seed(4)
    inputs = [
        EncoderInput(torch.randint(VOCAB_SIZE, (n_tokens,), generator=rng).tolist())
        for n_tokens in (3, 12, 1, 12, 7, CONTEXT)
    ]
    rows = dict(run_encoder(model, inputs, model, batch_size=4))
    assert len(fused_blocks) >= 2 * N_LAYERS
    with torch.no_grad():
        for number, (ids, _) in enumerate(inputs):
            assert_close(rows[number][: len(ids)], model(torch.tensor([ids]))[0], rtol=1e-5, atol=1e-5)


@needs_onednn
@pytest.mark.usefixtures("onednn")
def test_predictions_that_are_not_read_to_the_end_restore_the_blocks():
    model = make_model()
    outputs = run_encoder(model, [EncoderInput([1, 2, 3])] * 3, model, batch_size=1)
    next(outputs)
    assert isinstance(model.blocks[0].forward, FusedBlock)
    outputs.close()
    assert "forward" not in model.blocks[0].__dict__


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.integers(1, 40))
def test_batches_on_a_cpu_end_where_shorter_texts_begin(lengths, batch_size):
    batches = batching._batches(lengths, batch_size, cut_padding=True)
    order = [number for batch in batches for number in batch]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[number] for number in order] == sorted(lengths, reverse=True)
    for batch, following in zip(batches, [*batches[1:], []], strict=True):
        longest = lengths[batch[0]]
        n_similar = sum(lengths[number] >= 0.8 * longest for number in batch)
        assert n_similar == len(batch) or (len(batch) - 1) * longest < 256  # a small batch may have any padding
        is_cut = len(batch) * longest >= 256 and bool(following) and lengths[following[0]] < 0.8 * longest
        assert len(batch) == batch_size or not following or is_cut  # no batch is smaller than it must be


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 40))
def test_batches_on_a_gpu_are_full(lengths, batch_size):
    sizes = [len(batch) for batch in batching._batches(lengths, batch_size, cut_padding=False)]
    assert all(size == batch_size for size in sizes[:-1])
    assert sum(sizes) == len(lengths)


@pytest.mark.parametrize(("model", "sizes"), [(MODEL, [13, 1]), (create_tiny("bilstm"), [14])], ids=["bert", "bilstm"])
def test_a_recurrent_encoder_gets_full_batches(model, sizes):
    batches = []

    def forward(ids, mask, segments):
        batches.append(ids)
        return model(ids, mask)

    list(run_encoder(model, [EncoderInput([1] * length) for length in (5, *[20] * 13)], forward))
    assert [len(ids) for ids in batches] == sizes


@needs_onednn
@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize(("n_batches", "is_packed"), [(1, False), (2, False), (3, True)])
def test_weights_are_packed_for_many_batches_only(monkeypatch, n_batches, is_packed):
    """A single query must not wait for all weights to be packed."""
    packs = []
    monkeypatch.setattr(batching, "encoder_kernels", lambda model, pack: packs.append(pack) or encoder_kernels(model))
    list(run_encoder(MODEL, [EncoderInput([1, 2])] * n_batches, MODEL, batch_size=1))
    assert packs == [is_packed]
