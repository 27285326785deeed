"""Short reprs: a model, its state and its scores in one line each."""

import pytest
import torch

import headway
from headway.comparison import Comparison, ModelResult
from headway.data import open_source
from headway.errors import InputError
from headway.evaluation.perplexity import LMScore
from headway.evaluation.tasks import TaskScore
from headway.evaluation.validation import NotScored
from headway.models import Classifier, MaskedLM
from headway.models.description import format_count
from headway.training import Result
from tests.generation.small_models import char_model

REPRS = {
    "gpt2": "GPT(12 layers, 768 wide, 124.4M parameters, meta float32)",
    "bert": "BERT(12 layers, 768 wide, 109.5M parameters, meta float32)",
    "transformer": "Transformer(6 + 6 layers, 512 wide, 63.1M parameters, meta float32)",
    "nplm": "NPLM(order 5, 100 wide, 2.2M parameters, meta float32)",
    "rnn": "RNN(1 layer, 200 wide, 4.1M parameters, meta float32)",
    "lstm": "LSTM(2 layers, 650 wide, 19.8M parameters, meta float32)",
    "seq2seq": "Seq2Seq(4 layers, 1000 wide, 224.1M parameters, meta float32)",
    "bahdanau": "Bahdanau(1 encoder layer, 1000 wide, 61.9M parameters, meta float32)",
    "bow": "BagOfWords(10 wide, 2.3M parameters, meta float32)",
    "bilstm": "BiLSTM(1 layer, 200 wide, 3.7M parameters, meta float32)",
}


@pytest.mark.parametrize("name", REPRS)
def test_a_model_says_its_size_device_and_dtype(name):
    assert repr(headway.create(name, device="meta")) == REPRS[name]


def test_every_family_has_a_repr_here():
    assert {headway.PRESETS[name].family if name in headway.PRESETS else name for name in REPRS} == {
        *headway.MODELS
    } - {"ngram"}


def test_recurrent_models_are_called_by_their_cells():
    names = [headway.create("rnn", cell=cell, device="meta").display_name for cell in ("tanh", "gru", "peephole")]
    assert names == ["RNN", "GRU", "LSTM"]


def test_an_ngram_says_its_order_smoothing_and_ngrams():
    model = char_model("ngram", order=3)
    assert repr(model) == f"3-gram(kneser-ney, {model.n_params:,} n-grams)"


def test_heads_name_their_encoder():
    encoder = headway.create("bert", vocab_size=50, n_layers=2, n_heads=2, d_model=8, labels=["good", "bad"])
    assert repr(Classifier(encoder)).startswith("Classifier(BERT, 2 labels, 2 layers, 8 wide, ")
    assert repr(MaskedLM(encoder)).startswith("MaskedLM(BERT, 2 layers, 8 wide, ")


def test_the_tree_still_shows_every_module():
    model = headway.create("gpt", vocab_size=50, n_layers=2, n_heads=2, d_model=8)
    tree = model.tree()
    assert tree == torch.nn.Module.__repr__(model)
    assert all(name in tree for name, _ in model.named_children())


def test_large_counts_are_rounded():
    assert [format_count(n) for n in (7, 999_999, 1_000_000, 124_439_808, 1_542_000_000)] == [
        "7",
        "999,999",
        "1.0M",
        "124.4M",
        "1.5B",
    ]


@pytest.mark.parametrize("family", ["gpt", "lstm", "ngram", "nplm"])
def test_a_state_says_its_rows_and_bytes(family):
    model = char_model(family)
    _, state = model.step(torch.tensor([[1, 2, 3], [4, 5, 0]]), model.start(2), torch.tensor([3, 2]))
    assert "2 rows of 2 to 3 tokens" in repr(state)
    assert f"{state.nbytes:,} bytes" in repr(state)
    assert "\n" not in repr(state)
    assert "1 row of 2 tokens" in repr(state.reorder([1]))


def test_a_model_without_a_tokenizer_says_how_to_set_one():
    model = headway.create("gpt", vocab_size=50, n_layers=1, n_heads=2, d_model=8)
    assert not model.has_tokenizer
    with pytest.raises(InputError, match=r"this GPT has no tokenizer.*model\.tokenizer = headway\.load_tokenizer"):
        _ = model.tokenizer
    model.tokenizer = char_model("ngram").tokenizer
    assert model.has_tokenizer
    assert Classifier(headway.create("bilstm", vocab_size=9, labels=["a"])).has_tokenizer is False


def test_scores_results_and_recipes_are_one_line(tmp_path):
    score = LMScore(nats_per_token=1.0, bits_per_byte=1.25, n_tokens=10, n_bytes=12, context=8)
    assert repr(score) == "LMScore(1.2500 bits per byte, 1.0000 nats per token, perplexity 2.72)"
    assert repr(TaskScore(0.5, 4, accuracy=0.75)) == "TaskScore(0.5000 nats per target, accuracy 75.00%)"
    model = headway.create("gpt", vocab_size=50, n_layers=1, n_heads=2, d_model=8)
    result = Result(model, tmp_path, tmp_path, score, 1200, 3.0, 99)
    assert repr(result) == f"Result('{tmp_path}', 1,200 steps, {score.summary})"
    assert result.scores["bits_per_byte"] == 1.25
    stopped = Result(model, tmp_path, tmp_path, NotScored(), 3, 1.0, 9, interrupted=True)
    assert repr(stopped) == f"Result('{tmp_path}', 3 steps, not scored, interrupted)"
    assert (bool(stopped.score), stopped.scores) == (False, {})
    recipe = headway.load_recipe("demo", ["train.steps=20"])
    assert repr(recipe) == "Recipe(gpt-mini on pydocs, 20 steps)"
    row = ModelResult("gpt", 2019, "", "", 1000, 10, 5, 1e6, 2.0, {"bits_per_byte": 1.5, "perplexity": 9.0})
    assert repr(row) == "ModelResult('gpt', 1,000 parameters, bits_per_byte 1.5, perplexity 9)"
    comparison = Comparison("pydocs", "text", "valid", "", 64, 99, "", [row], "bits_per_byte")
    assert repr(comparison) == "Comparison('pydocs', bits_per_byte: gpt 1.5)"
    (tmp_path / "text.txt").write_text("abc")
    assert repr(open_source(str(tmp_path / "text.txt"))) == f"DataSource('{tmp_path / 'text.txt'}', text, 3 bytes)"
