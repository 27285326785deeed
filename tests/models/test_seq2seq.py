"""Encoder-decoders before the Transformer: what they compute, and that they are trained, searched and looked into."""

import pytest
import torch
from torch.testing import assert_close

import headway
from headway.analysis.attention import record
from headway.config import load_recipe
from headway.costs.flops import matrix_weights
from headway.errors import ConfigError, InputError
from headway.generation.alignment import align
from headway.nn.additive_attention import AdditiveAttention
from tests.models.variants import loud


def small(family: str, **config):
    return loud(headway.create(family, vocab_size=17, d_model=8, context=20, **config))


def test_additive_attention_is_its_equations():
    """Bahdanau et al. 2015, §3.1 and appendix A.1.2, place by place."""
    made = AdditiveAttention(4, 6, 5)
    s, h = torch.randn(2, 4), torch.randn(2, 3, 6)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    c, alpha = made(s, h, made.U(h), mask)
    for b, n in enumerate((3, 2)):
        e = [made.v(torch.tanh(made.W(s[b]) + made.U(h[b, j]))).item() for j in range(n)]
        expected = torch.tensor(e).softmax(0)
        assert_close(alpha[b, :n], expected)
        assert_close(c[b], (expected[:, None] * h[b, :n]).sum(0))
    assert alpha[1, 2] == 0


def test_a_target_is_written_by_the_equations_of_the_paper():
    model = small("bahdanau", d_hidden=6, d_out=4)
    ids, source = torch.tensor([[1, 5, 9]]), torch.tensor([[3, 4, 2, 8]])
    h, _, back = model.encoder(model.embedding[source])
    s = torch.tanh(model.first(back[0]))
    for i in range(3):
        y = model.embedding[ids[:, i]]
        c, _ = model.attention(s, h, model.attention.U(h), None)
        s = model.decoder.steps(torch.cat((y, c), -1)[:, None], (s,))[1][0]
        t = model.maxout(torch.cat((s, y, c), -1)).view(1, 4, 2).max(-1).values
        assert_close(model(ids, source=source)[:, i], t @ model.unembedding.T + model.bias, rtol=1e-4, atol=1e-4)


def test_the_source_is_read_backwards_into_one_state():
    model = small("seq2seq", n_layers=2)
    source = torch.tensor([[3, 4, 2, 8]])
    x, states = model.embedding[source.flip(1)], []
    for layer in model.encoder:
        x, carried = layer.steps(x, layer.start(1))
        states.append(carried)
    assert_close(model.start(source=source).layers, tuple(states), rtol=1e-5, atol=1e-5)
    padded = torch.tensor([[3, 4, 2, 8, 0, 0]])
    mask = torch.arange(6)[None] < 4
    assert_close(model.start(source=padded, source_mask=mask).layers, tuple(states), rtol=1e-5, atol=1e-5)


def test_sizes():
    """Sutskever et al. 2014, §3.4: of the 384 million parameters, 64 million are recurrent, 32 of each side."""
    model = headway.create("seq2seq", device="meta")
    per_side = sum(p.numel() for name, p in model.named_parameters() if name.startswith("encoder") and "weight" in name)
    assert per_side == 32_000_000
    with pytest.raises(ConfigError, match="d_out=5 with tied embeddings"):
        headway.create("bahdanau", tie_embeddings=True, d_out=5)


@pytest.mark.parametrize("family", ["seq2seq", "bahdanau"])
def test_the_cost_counts_every_matrix(family):
    model = small(family)
    skipped = model.embedding.numel()
    if family == "bahdanau":
        skipped += model.first.weight.numel() + model.attention.v.weight.numel()  # once a sentence; a vector
    matrices = sum(p.numel() for p in model.parameters() if p.dim() == 2) - skipped
    assert matrix_weights(model.config) == matrices


@pytest.mark.parametrize("family", ["seq2seq", "bahdanau"])
def test_padding_in_the_middle_is_refused(family):
    model = small(family)
    mask = torch.tensor([[True, False, True]])
    with pytest.raises(InputError, match="padding at the end"):
        model.start(source=torch.tensor([[1, 2, 3]]), source_mask=mask)
    with pytest.raises(InputError, match="writes from a source"):
        model.start()


@pytest.mark.parametrize("family", ["seq2seq", "bahdanau"])
def test_they_learn_pairs_and_translate(family, tmp_path):
    recipe = load_recipe(
        f"dates-{family}",
        ["train.steps=120", "train.lr=0.01", "train.warmup_steps=20", "eval.every_steps=0",
         "train.batch_size=32", "model.d_model=48", *(["model.d_hidden=48"] if family == "bahdanau" else [])],
    )  # fmt: skip
    result = headway.train(recipe, out=tmp_path / "run")
    assert result.score.nats_per_target < 1.6  # of ten digits, a dash and the end, ln 12 = 2.5
    model = headway.load(tmp_path / "run")
    beams = headway.translate(model, ["May 3, 1987", "", "3/5/1987"], num_beams=3, n_best=2, max_new_tokens=12)
    assert [bool(t.tokens) for t in beams] == [True, False, True]
    assert beams[0].score >= beams[0].others[0].score
    drawn = headway.translate(model, ["May 3, 1987"], temperature=1.0, seed=1, max_new_tokens=12)
    assert (
        drawn[0].text == headway.translate(model, ["May 3, 1987"], temperature=1.0, seed=1, max_new_tokens=12)[0].text
    )
    together = headway.translate(model, ["May 3, 1987", "1 June 2001", "5"], max_new_tokens=12)
    alone = [headway.translate(model, text, max_new_tokens=12)[0] for text in ("May 3, 1987", "1 June 2001", "5")]
    assert [t.text for t in together] == [t.text for t in alone]
    if family == "bahdanau":
        (seen,) = record(model, [1, 5, 9], source=[3, 4])
        assert_close(seen.weights.sum(-1), torch.ones(1, 3))
        assert align(model, "May 3", "1987 1")[0].source in ("May", "3")
    else:
        with pytest.raises(InputError, match="does not look back at the source"):
            align(model, "May", "1987")
