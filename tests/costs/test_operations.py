"""The rows of a pass: products counted from configs equal those that PyTorch counts, and the lectures' figures."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import headway
from headway.config import FAMILIES, model_config
from headway.costs import flops_per_token
from headway.costs.operations import can_decode, count_pass, has_source
from headway.models.bert import MaskedLM
from headway.models.heads import Classifier
from headway.nn.attention import use_attention
from headway.nn.recurrent import Recurrent
from tests.models.variants import BAHDANAUS, GPTS, NPLMS, RNNS, SEQ2SEQS, SMALL, TINY, TRANSFORMERS

STACK = {**TINY, "n_layers": 2}
RECURRENT = {"vocab_size": 41, "d_model": 12}
LABELS = {"labels": ["no", "yes", "maybe"]}
CONFIGS = {
    "gpt": [STACK | variant for variant in GPTS],
    "bert": [STACK | variant for variant in GPTS] + [STACK | LABELS],
    "transformer": [STACK | variant for variant in TRANSFORMERS] + [STACK | {"n_decoder_layers": 0}],
    "nplm": [SMALL | variant for variant in NPLMS],
    "rnn": [SMALL | variant for variant in RNNS] + [SMALL | {"n_layers": 3, "tie_embeddings": True, "d_hidden": 20}],
    "lstm": [SMALL],
    "seq2seq": [RECURRENT | variant for variant in SEQ2SEQS],
    "bahdanau": [RECURRENT | variant for variant in BAHDANAUS],
    "bilstm": [SMALL | LABELS | {"n_layers": layers, "cell": cell} for layers in (1, 3) for cell in ("lstm", "gru")],
    "bow": [RECURRENT | LABELS],
}
BATCH_SIZE, SEQ_LEN, SOURCE_LEN = 3, 7, 5


@pytest.fixture(autouse=True)
def plain_recurrent_cells(monkeypatch):
    """Step by step, as the definition: the counter does not see fused kernels."""
    monkeypatch.setattr(Recurrent, "forward", lambda self, x, state, lengths=None: self.steps(x, state))


def build(config):
    model = headway.create(config)
    if config.family in ("bert", "bilstm", "bow"):
        model = Classifier(model) if config.labels else MaskedLM(model)
    return use_attention(model.eval(), "reference")


def inputs(config):
    ids = torch.randint(5, config.vocab_size, (BATCH_SIZE, SEQ_LEN))
    source = torch.randint(5, config.vocab_size, (BATCH_SIZE, SOURCE_LEN))
    return ids, {"source": source} if has_source(config) else {}


def predicted(config, phase):
    return count_pass(config, phase, batch_size=BATCH_SIZE, seq_len=SEQ_LEN, source_len=SOURCE_LEN)


@pytest.mark.parametrize("family", CONFIGS)
def test_forward_and_backward_products_are_those_that_pytorch_counts(family):
    for variant in CONFIGS[family]:
        config = model_config(family, variant)
        model, (ids, source) = build(config), inputs(config)
        with FlopCounterMode(display=False) as forward:
            logits = model(ids, **source)
        with FlopCounterMode(display=False) as backward:
            logits.sum().backward()
        expected = predicted(config, "forward")
        assert forward.get_total_flops() == expected.total_flops, variant
        assert backward.get_total_flops() == expected.backward_flops, variant


@pytest.mark.parametrize("family", [family for family in CONFIGS if can_decode(model_config(family))])
@torch.no_grad()
def test_a_cached_step_has_the_products_that_pytorch_counts(family):
    for variant in CONFIGS[family]:
        config = model_config(family, variant)
        model, (ids, source) = build(config), inputs(config)
        with FlopCounterMode(display=False) as prefill:
            state = model.start(**source or {"batch_size": BATCH_SIZE})
            _, state = model.step(ids, state, last=True)
        assert prefill.get_total_flops() == predicted(config, "prefill").total_flops, variant
        state = model.start(**source or {"batch_size": BATCH_SIZE})
        _, state = model.step(ids[:, :-1], state)
        with FlopCounterMode(display=False) as decode:
            model.step(ids[:, -1:], state)
        assert decode.get_total_flops() == predicted(config, "decode").total_flops, variant


def test_a_recurrent_layer_reads_its_weights_at_every_step():
    """But the products with its inputs are one product for all tokens, if the inputs are known in advance."""
    for family, name, repeats in (("lstm", "state to gates", SEQ_LEN), ("lstm", "input to gates", 1)):
        forward = count_pass(model_config(family, SMALL), seq_len=SEQ_LEN)
        [row] = {str(o.steps): o for o in forward.operations if o.name == name}.values()
        activations = (row.reads + row.writes).evaluate(forward.sizes)
        weights = row.weights.evaluate(forward.sizes)
        assert row.elements.evaluate(forward.sizes) == repeats * weights + activations
    decoder = [o for o in count_pass(model_config("bahdanau", RECURRENT)).operations if o.stage == "decoder"]
    assert {o.name: str(o.steps) for o in decoder if o.weights.evaluate({**dict.fromkeys("bnsdraoV", 1)})} == {
        "query of the alignment": "n",
        "alignment scores": "n",
        "input to gates": "n",
        "state to gates": "n",
    }


@pytest.mark.parametrize("family", ["gpt", "transformer"])
def test_a_decode_step_with_a_window_attends_to_the_last_tokens(family):
    config = model_config(family, STACK)
    counted = count_pass(config, "decode", seq_len=20, source_len=SOURCE_LEN, window=6)
    inside = count_pass(config, "decode", seq_len=6, source_len=SOURCE_LEN)
    assert counted.total_flops == inside.total_flops
    before = count_pass(config, "decode", seq_len=4, source_len=SOURCE_LEN, window=6)
    assert before.total_flops == count_pass(config, "decode", seq_len=4, source_len=SOURCE_LEN).total_flops


def test_every_family_is_counted():
    assert {*CONFIGS, "ngram"} == set(FAMILIES)
    assert count_pass(model_config("ngram"), seq_len=9).total_flops == 0


def test_the_rows_of_gpt2_are_the_lectures():
    """LECTURES §E: QKV 6bnd², scores and weighted sum 2bn²d each, output 2bnd², feed-forward 16bnd²."""
    forward = count_pass(model_config("gpt2"), seq_len=1024)
    rows = {o.name: (str(o.flops), forward.flops(o)) for o in forward.operations}
    assert rows == {
        "Q/K/V projections": ("6 b n d²", 3_623_878_656),
        "scores": ("2 b n² d", 1_610_612_736),
        "softmax": ("5 b n² h", 62_914_560),
        "weighted sum": ("2 b n² d", 1_610_612_736),
        "output projection": ("2 b n d²", 1_207_959_552),
        "feed-forward": ("16 b n d²", 9_663_676_416),
        "unembedding": ("2 b n V d", 79_047_426_048),
    }
    assert forward.total_flops == 291_648_307_200
    assert count_pass(model_config("gpt2"), "decode", seq_len=1024).total_flops == 284_812_800


def test_an_encoder_decoder_has_terms_in_the_source_the_target_and_both():
    """Quiz: summarising s tokens in n costs s² d + s d² + n² d + n d² + n s d, up to constants."""
    forward = count_pass(model_config("transformer"), seq_len=100, source_len=700)
    layers = [o for o in forward.operations if o.stage != "output" and o.is_product]
    terms = {powers for o in layers for powers, _ in o.flops}
    products = {" ".join(name + str(power) for name, power in powers if name != "b") for powers in terms}
    assert products == {"s1 d2", "s2 d1", "n1 d2", "n2 d1", "n1 s1 d1"}


def test_training_flops_per_token_are_three_forward_passes():
    """The lecture's 3 (24bnd² + 4bn²d), and the unembedding."""
    n, d = 1024, 768
    per_layer = 24 * n * d**2 + 4 * n**2 * d
    assert flops_per_token(model_config("gpt2"), n) == 3 * (12 * per_layer + 2 * n * d * 50257) / n
