"""Recurrent encoder-decoders: their equations and sizes, training, beam search and attention maps."""

import pytest
import torch
from torch.testing import assert_close

import headway
from headway.analysis.attention import attention_maps
from headway.config import recipe_from_table
from headway.errors import ConfigError, InputError
from headway.generation.alignment import align
from headway.nn.additive_attention import AdditiveAttention
from tests.models.variants import amplified


def small(family: str, **config):
    return amplified(headway.create(family, vocab_size=17, d_model=8, context=20, **config))


def test_additive_attention_is_its_equations():
    """Bahdanau et al. 2015, §3.1 and appendix A.1.2, position by position."""
    attention = AdditiveAttention(4, 6, 5)
    s, h = torch.randn(2, 4), torch.randn(2, 3, 6)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    c, alpha = attention(s, h, attention.U(h), mask)
    for b, n in enumerate((3, 2)):
        e = [attention.v(torch.tanh(attention.W(s[b]) + attention.U(h[b, j]))).item() for j in range(n)]
        expected = torch.tensor(e).softmax(0)
        assert_close(alpha[b, :n], expected)
        assert_close(c[b], (expected[:, None] * h[b, :n]).sum(0))
    assert alpha[1, 2] == 0


def test_bahdanau_decodes_by_the_papers_equations():
    model = small("bahdanau", d_hidden=6, d_out=4)
    ids, source = torch.tensor([[1, 5, 9]]), torch.tensor([[3, 4, 2, 8]])
    h, _, backward_state = model.encoder(model.embedding[source])
    s = torch.tanh(model.init_state(backward_state[0]))
    for i in range(3):
        y = model.embedding[ids[:, i]]
        c, _ = model.attention(s, h, model.attention.U(h), None)
        s = model.decoder.steps(torch.cat((y, c), -1)[:, None], (s,))[1][0]
        t = model.maxout(torch.cat((s, y, c), -1)).view(1, 4, 2).max(-1).values
        assert_close(model(ids, source=source)[:, i], t @ model.unembedding.T + model.bias, rtol=1e-4, atol=1e-4)


def test_seq2seq_encodes_the_reversed_source_into_one_state():
    model = small("seq2seq", n_layers=2)
    source = torch.tensor([[3, 4, 2, 8]])
    x, states = model.embedding[source.flip(1)], []
    for layer in model.encoder:
        x, state = layer.steps(x, layer.start(1))
        states.append(state)
    assert_close(model.start(source=source).layers, tuple(states), rtol=1e-5, atol=1e-5)
    padded = torch.tensor([[3, 4, 2, 8, 0, 0]])
    mask = torch.arange(6)[None] < 4
    assert_close(model.start(source=padded, source_mask=mask).layers, tuple(states), rtol=1e-5, atol=1e-5)


def test_sizes():
    """Sutskever et al. 2014, §3.4: of the 384 million parameters, 64 million are recurrent, 32 million per side."""
    model = headway.create("seq2seq", device="meta")
    per_side = sum(p.numel() for name, p in model.named_parameters() if name.startswith("encoder") and "weight" in name)
    assert per_side == 32_000_000
    with pytest.raises(ConfigError, match="d_out=5 with tied embeddings"):
        headway.create("bahdanau", tie_embeddings=True, d_out=5)


@pytest.mark.parametrize("family", ["seq2seq", "bahdanau"])
def test_padding_in_the_middle_is_refused(family):
    model = small(family, **({"d_hidden": 6} if family == "bahdanau" else {}))
    mask = torch.tensor([[True, False, True]])
    with pytest.raises(InputError, match="padding at the end"):
        model.start(source=torch.tensor([[1, 2, 3]]), source_mask=mask)
    with pytest.raises(InputError, match="needs a source"):
        model.start()


@pytest.mark.parametrize("family", ["seq2seq", "bahdanau"])
def test_training_and_translation(family, tmp_path):
    """Learn to swap two words, then translate with beams, by sampling and in a batch."""
    words = ["red", "green", "blue", "cat", "dog", "fish"]
    pairs = [(f"{a} {b}", f"{b} {a}") for a in words for b in words]
    file = tmp_path / "pairs.tsv"
    file.write_text("source\ttarget\n" + "".join(f"{source}\t{target}\n" for source, target in pairs * 10))
    recipe = recipe_from_table({
        "model": {"family": family, "d_model": 24, "context": 16, "dropout": 0.0,
                  **({"d_hidden": 24} if family == "bahdanau" else {"n_layers": 1})},
        "tokenizer": {"kind": "word"},
        "data": {"path": str(file), "pairs": "source,target"},
        "train": {"device": "cpu", "objective": "pairs", "steps": 80, "batch_size": 32, "lr": 0.02, "warmup_steps": 5,
                  "save_every": 0},
        "eval": {"every_steps": 0},
    })  # fmt: skip
    headway.train(recipe, out=tmp_path / "run")
    model = headway.load(tmp_path / "run")
    translations = headway.translate(model, [source for source, _ in pairs], max_new_tokens=6)
    n_right = sum(t.text == target for t, (_, target) in zip(translations, pairs, strict=True))
    assert n_right >= 24  # of 36, some of them held out; a random guess gets 1
    texts = ["red cat", "", "dog blue"]
    beams = headway.translate(model, texts, num_beams=3, n_best=2, max_new_tokens=6)
    assert [bool(translation.tokens) for translation in beams] == [True, False, True]
    assert beams[0].score >= beams[0].others[0].score
    samples = [headway.translate(model, texts[0], temperature=1.0, seed=1, max_new_tokens=6)[0] for _ in range(2)]
    assert samples[0].text == samples[1].text
    batch = headway.translate(model, ["red cat", "green", "fish fish"], max_new_tokens=6)
    rows = [headway.translate(model, text, max_new_tokens=6)[0] for text in ("red cat", "green", "fish fish")]
    assert [translation.text for translation in batch] == [translation.text for translation in rows]
    if family == "bahdanau":
        (attention_map,) = attention_maps(model, [1, 5, 9], source=[3, 4])
        assert_close(attention_map.weights.sum(-1), torch.ones(1, 3))
        assert align(model, "red cat", "cat red")[0].source in ("red", "cat")
    else:
        with pytest.raises(InputError, match="has no attention to align by"):
            align(model, "red", "red")
