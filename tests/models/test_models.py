"""Behaviour of single families: learning, initialisation, encoders, and input errors."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import headway
from headway.config import GPTConfig
from headway.errors import ConfigError, HeadwayError, InputError
from headway.models import Classifier, MaskedLM
from headway.nn import use_attention
from tests.models.variants import POSITIONS, amplified, gpt


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_tiny_gpt_overfits_one_batch(positions):
    model = headway.create("gpt-tiny", vocab_size=30, positions=positions, n_layers=1)
    ids = torch.randint(30, (4, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(60):
        loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.3  # ln 30 = 3.4 at the start


def test_a_tiny_transformer_learns_to_reverse():
    """Exactly, on unseen sequences: 10 symbols, length 5, BOS is 10."""
    torch.manual_seed(0)
    shape = {"vocab_size": 11, "n_layers": 1, "d_model": 64, "n_heads": 4, "context": 16}
    model = headway.create("transformer", **shape, dropout=0.0, norm_order="pre")
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(300):
        source = torch.randint(10, (64, 5))
        target = source.flip(1)
        ids = torch.cat((torch.full((64, 1), 10), target[:, :-1]), dim=1)
        loss = F.cross_entropy(model(ids, source=source).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    source = torch.randint(10, (50, 5))
    model.eval()
    state, ids, outputs = model.start(source=source), torch.full((50, 1), 10), []
    for _ in range(5):
        logits, state = model.step(ids, state, last=True)
        ids = logits.argmax(-1)
        outputs.append(ids)
    assert (torch.cat(outputs, 1) == source.flip(1)).all(1).float().mean() >= 0.95


def test_a_tiny_bert_overfits_one_masked_batch():
    encoder = headway.create("bert-mini", vocab_size=30, n_layers=1, dropout=0.0)
    model, ids = MaskedLM(encoder), torch.randint(29, (4, 12))
    is_masked = torch.rand(4, 12) < 0.3
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(60):
        loss = F.cross_entropy(model(ids.masked_fill(is_masked, 29))[is_masked], ids[is_masked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.2


def test_gpt2_is_initialised_as_in_its_paper():
    """N(0, 0.02), residual projections divided by √(2 · layers); the loss of a new model is ln V."""
    model = headway.create("gpt2", n_layers=8, d_model=256, n_heads=4)
    block = model.blocks[0]
    assert block.attention.qkv.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert block.feed_forward.down.weight.std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert block.norm1.weight.eq(1).all()
    assert block.attention.qkv.bias.eq(0).all()
    ids = torch.randint(50257, (2, 64))
    loss = F.cross_entropy(model.eval()(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(50257), rel=0.01)
    post = headway.create("gpt1", n_layers=2, d_model=256, n_heads=4)
    assert post.blocks[0].feed_forward.down.weight.std().item() == pytest.approx(0.02, rel=0.02)


def test_bert_is_initialised_within_two_standard_deviations():
    weight = headway.create("bert-mini").blocks[0].attention.qkv.weight
    assert weight.abs().max() <= 0.04
    assert weight.std().item() == pytest.approx(0.0176, rel=0.03)  # truncation at two std leaves 0.88 of it


def test_transformer_embeddings_have_unit_variance_after_scaling():
    model = headway.create("transformer-mini").eval()
    assert model.embedding(torch.arange(1024)[None]).std().item() == pytest.approx(1.0, rel=0.02)
    q_bound = math.sqrt(6 / (192 + 192))
    assert model.encoder.blocks[0].attention.qkv.weight.abs().max().item() == pytest.approx(q_bound, rel=0.01)


def test_create_is_deterministic_and_allocates_nothing_on_meta():
    torch.manual_seed(7)
    first = headway.create("gpt-tiny")
    torch.manual_seed(7)
    for a, b in zip(first.parameters(), headway.create("gpt-tiny").parameters(), strict=True):
        assert torch.equal(a, b)
    assert all(p.is_meta for p in headway.create("gpt3-175b", device="meta").parameters())


def test_padding_does_not_change_encoder_outputs():
    model = amplified(headway.create("bert-mini", n_layers=2, context=20))
    ids, lengths = torch.randint(1024, (3, 12)), [12, 5, 1]
    mask = torch.arange(12) < torch.tensor(lengths)[:, None]
    hidden = model(ids.masked_fill(~mask, -5), mask)
    for b, n in enumerate(lengths):
        assert_close(hidden[b, :n], model(ids[b : b + 1, :n])[0], rtol=1e-4, atol=1e-5)


def test_an_all_padding_source_row_gives_finite_logits():
    model = headway.create("transformer-mini").eval()
    mask = torch.tensor([[True, True], [False, False]])
    logits = model(torch.ones(2, 3, dtype=torch.long), source=torch.ones(2, 2, dtype=torch.long), source_mask=mask)
    assert logits.isfinite().all()


def test_dropout_is_off_in_eval_mode():
    model, ids = headway.create("gpt-tiny", dropout=0.5), torch.randint(1024, (1, 8))
    assert not torch.equal(model(ids), model(ids))
    model.eval()
    assert torch.equal(model(ids), model(ids))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.tensor([[3, 41]]), "token id 41 is outside the vocabulary of 41: ids run from 0 to 40"),
        (torch.tensor([[-1, 2]]), "token id -1 is outside"),
        (torch.tensor([1, 2]), r"ids of shape \(2,\): expected \(batch, tokens\); for one text use ids\[None\]"),
        (torch.zeros(1, 2), "ids of type torch.float32: token ids are integers"),
        (torch.zeros(1, 0, dtype=torch.long), "contain no tokens"),
    ],
)
def test_wrong_ids_are_reported(ids, message):
    model = gpt()
    with pytest.raises(InputError, match=message):
        model(ids)
    with pytest.raises(InputError, match=message):
        model.step(ids, model.start(1))


def test_wrong_segments_are_reported():
    model, ids = headway.create("bert-mini", n_layers=1), torch.ones(2, 3, dtype=torch.long)
    with pytest.raises(InputError, match="segments 1024 is outside"):
        model(ids, segments=ids * 1024)
    with pytest.raises(InputError, match=r"segments of type torch\.float32"):
        model(ids, segments=ids.float())
    with pytest.raises(InputError, match=r"segments of shape \(1, 3\) for ids"):
        model(ids, segments=ids[:1])
    with pytest.raises(InputError, match=r"ids of shape \(\)"):
        model(torch.tensor(1))
    with pytest.raises(InputError, match="ids of type list: expected a tensor"):
        gpt()([[1, 2]])


def test_wrong_sources_and_masks_are_reported():
    model = headway.create("transformer-mini").eval()
    ids = torch.ones(2, 3, dtype=torch.long)
    with pytest.raises(InputError, match="start\\(source=ids"):
        model.start(batch_size=2)
    with pytest.raises(InputError, match="batch_size=3 for a source of 2 rows"):
        model.start(batch_size=3, source=ids)
    with pytest.raises(InputError, match="one boolean per token"):
        model(ids, source=ids, source_mask=torch.ones(2, 3))
    with pytest.raises(InputError, match="source 5001 is outside the vocabulary"):
        model(ids, source=ids + 5000)
    with pytest.raises(InputError, match="ids of 2 rows for a source of 1"):
        model(ids, source=ids[:1])
    with pytest.raises(InputError, match=r"source of shape \(3,\)"):
        model.start(source=ids[0])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"d_model": 100}, "does not split into n_heads=12 equal heads; possible: d_model=96, or n_heads of 1, 2, 4"),
        ({"n_kv_heads": 5}, "n_kv_heads=5 does not divide n_heads=12.*possible: 1, 2, 3, 4, 6, 12"),
        ({"positions": "rotery"}, "Did you mean 'rotary'"),
        ({"n_layer": 3}, "no setting 'model.n_layer'. Did you mean 'model.n_layers'"),
        ({"n_layers": "three"}, "model.n_layers='three' is not a whole number"),
        ({"dropout": 1.5}, "dropout=1.5"),
        ({"vocab_size": 0}, "vocab_size=0 must be at least 1"),
        ({"positions": "rotary", "d_head": 7}, "d_head=7 is odd"),
        ({"n_heads": 1000}, "possible: n_heads of 1, 2, 3, 4, 6, 8, 12, 16, …; or give d_head"),
        ({"eos_id": 10**9}, "eos_id=1000000000 is outside the vocabulary"),
        ({"bos_id": -5}, "bos_id=-5 must be at least 0"),
    ],
)
def test_wrong_configs_are_explained(overrides, message):
    with pytest.raises(ConfigError, match=message):
        headway.create("gpt2", device="meta", **overrides)


def test_configs_built_in_python_are_validated():
    for wrong in ({"positions": "foo"}, {"n_layers": 2.5}, {"n_layers": "3"}, {"norm": "batch"}, {"n_layers": True}):
        with pytest.raises(ConfigError):
            GPTConfig(**wrong)


@pytest.mark.parametrize("device", ["gpu", "mps", "xpu", "cuda:99", None])
def test_unavailable_devices_are_reported(device):
    with pytest.raises(HeadwayError, match="device="):
        headway.create("gpt-tiny", device=device)


def test_an_unknown_attention_is_reported():
    with pytest.raises(InputError, match="no attention named 'slow'; choose from reference, fast, flex"):
        use_attention(gpt(), "slow")


def test_stacked_matrices_are_initialised_with_their_own_bounds():
    """Glorot's bound depends on the number of rows: 64 for W_Q, 8 for W_K and W_V of a single head."""
    model = headway.create("transformer", vocab_size=9, n_layers=1, d_model=64, n_heads=8, n_kv_heads=1)
    q, k, v = model.encoder.blocks[0].attention.qkv.weight.split([64, 8, 8])
    assert q.abs().max().item() == pytest.approx(math.sqrt(6 / 128), rel=0.02)
    for matrix in (k, v):
        assert matrix.abs().max().item() == pytest.approx(math.sqrt(6 / 72), rel=0.05)


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(ConfigError, match=r"no model family or preset named 'gpt-2'\. Did you mean 'gpt2'"):
        headway.create("gpt-2")


def test_a_classifier_warns_about_a_text_without_cls(recwarn):
    tokenizer = headway.tokenizers.train("wordpiece", ["to be or not to be"] * 20, vocab_size=40)
    encoder = headway.create(
        "bert", vocab_size=tokenizer.vocab_size, n_layers=1, n_heads=1, d_model=8, labels=["a", "b"]
    )
    encoder.tokenizer = tokenizer
    model = Classifier(encoder).eval()
    ids = tokenizer.encode("to be")
    model(torch.tensor([tokenizer.build_inputs(ids)[0]]))
    assert not recwarn
    with pytest.warns(UserWarning, match=r"does not start with \[CLS\].*build_inputs"):
        model(torch.tensor([ids]))
    model.train()(torch.tensor([ids]))  # the training data is encoded by the dataset
