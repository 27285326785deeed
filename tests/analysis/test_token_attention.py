"""Where a word attends: its rows are averaged, its columns summed, and the words are those of the text."""

import pytest
import torch
from torch.testing import assert_close

import headway
from headway.analysis.attention import text_attention
from headway.analysis.plotting import figure_style, new_figure
from headway.analysis.token_attention import draw, plot, render_text, word_attention
from headway.errors import InputError
from headway.tokenizers import train as train_tokenizer

TEXT = "the cat sat because the cat slept."


def model_of(family, tokenizer, **config):
    torch.manual_seed(0)
    sizes = {"vocab_size": tokenizer.vocab_size, "d_model": 16, "n_heads": 2, "n_layers": 3, "context": 64}
    model = headway.create(family, **sizes | config)
    for parameter in model.parameters():  # attention far from uniform
        torch.nn.init.normal_(parameter, std=0.5)
    model.tokenizer = tokenizer
    return model.eval()


@pytest.fixture(scope="module")
def gpt():
    return model_of("gpt", train_tokenizer("char", [TEXT]))


def test_weights_from_a_word_are_means_and_to_a_word_sums(gpt):
    """Of a character model: every word has several tokens, and a space belongs to no word."""
    result, whole = word_attention(gpt, TEXT, "sat"), text_attention(gpt, TEXT)
    assert result.attended[:5] == ["the", "·", "cat", "·", "sat"]
    assert result.tokens == ["s", "a", "t"]
    rows = torch.stack([m.weights[:, 8:11].mean(dim=1) for m in whole.maps])  # (layers, heads, S)
    assert_close(result.weights[:, :, 0], rows[:, :, :3].sum(dim=-1))
    assert_close(result.weights[:, :, 2], rows[:, :, 4:7].sum(dim=-1))
    assert_close(result.weights.sum(dim=-1), torch.ones(3, 2))
    assert result.itself == 4
    assert result.visible == [True] * 5 + [False] * (len(result.attended) - 5)


def test_the_last_occurrence_counts_unless_another_is_chosen(gpt):
    last, first = word_attention(gpt, TEXT, "cat"), word_attention(gpt, TEXT, "cat", occurrence=1)
    assert (last.occurrence, last.n_occurrences, first.occurrence) == (2, 2, 1)
    assert (first.itself, last.itself) == (2, 10)
    assert word_attention(gpt, TEXT, "CAT").itself == 10  # no such spelling: without regard to case
    with pytest.raises(InputError, match="occurrence 3 of 'cat' does not exist: it occurs 2 times; choose 1 to 2"):
        word_attention(gpt, TEXT, "cat", occurrence=3)
    with pytest.raises(InputError, match="occurrence 0"):
        word_attention(gpt, TEXT, "cat", occurrence=0)


def test_a_word_that_is_not_in_the_text_is_answered_with_those_that_are(gpt):
    words = r"the, cat, sat, because, slept, \."
    with pytest.raises(
        InputError, match=rf"'slepd' is not a word of the text\. Did you mean 'slept'\? Its words: {words}"
    ):
        word_attention(gpt, TEXT, "slepd")


def test_a_token_is_found_where_no_word_is(gpt):
    result = word_attention(gpt, "abcab", "c")
    assert (result.tokens, result.attended) == (["c"], list("abcab"))
    assert word_attention(gpt, TEXT, " ").word == "·"


def test_ranks_and_strongest_heads_are_those_of_the_weights(gpt):
    result = word_attention(gpt, TEXT, "sat", layers=[0, 2])
    ranked = result.ranked()
    assert sorted(ranked) == [0, 1, 2, 3, 4]
    assert ranked[0] == int(result.weights.mean(dim=(0, 1)).argmax())
    layer, head, weight = result.strongest_head(ranked[0])
    assert weight == result.weights[:, :, ranked[0]].max()
    assert weight == result.weights[[0, 2].index(layer), head, ranked[0]]
    best = result.most_attended()
    assert [len(row) for row in best] == [2, 2]
    assert best[1][0][1] == result.weights[1, 0].max()
    assert result.to_dict()["ranked"][0]["word"] == result.attended[ranked[0]]


def test_words_of_an_encoder_and_of_both_its_texts_are_found():
    texts = ("the cat sat", "on the mat")
    model = model_of("bert", train_tokenizer("wordpiece", [" ".join(texts)] * 9, 60))
    result = word_attention(model, texts[0], "the", texts[1])
    assert result.attended == ["[CLS]", "the", "cat", "sat", "[SEP]", "on", "the", "mat", "[SEP]"]
    assert (result.itself, result.n_occurrences) == (6, 2)
    assert word_attention(model, texts[0], "[CLS]", texts[1]).itself == 0


def test_words_of_the_target_attend_to_those_of_the_source():
    tokenizer = train_tokenizer("char", ["ab cd"])
    model = model_of("transformer", tokenizer, eos_id=tokenizer.eos_id, bos_id=tokenizer.bos_id)
    cross = word_attention(model, "ab cd", "dc", "dc ba")
    assert (cross.side, cross.itself) == ("cross", None)
    assert (cross.tokens, cross.attended) == (["d", "c"], ["ab", "·", "cd", "<|endoftext|>"])
    decoder = word_attention(model, "ab cd", "ba", "dc ba", side="decoder")
    assert decoder.attended == ["start", "dc", "·", "ba"]
    assert decoder.visible == [True] * 4


def test_the_table_names_the_word_its_bars_and_every_head(gpt):
    lines = render_text(word_attention(gpt, TEXT, "cat"), n_best=3, width=60).splitlines()
    assert lines[0] == "“cat” (2 of 2), tokens c a t: decoder self-attention, mean of 3 layers × 2 heads"
    assert all("█" in line and "most in layer" in line for line in lines[2:5])
    assert lines[5].endswith("together")
    assert [line.split()[:2] for line in lines[8:]] == [["layer", "0"], ["layer", "1"], ["layer", "2"]]
    one = render_text(word_attention(gpt, TEXT, "cat", layers=[1], heads=[0]))
    assert "most in" not in one


def test_the_picture_has_a_row_per_word_and_a_column_per_head(gpt, tmp_path):
    result = word_attention(gpt, TEXT, "sat")
    with figure_style():
        figure = new_figure(7, 5)
        draw(figure, result, model="demo")
    heads, bars = figure.axes[:2]
    assert heads.images[0].get_array().shape == (len(result.attended), 6)
    assert [bar.get_width() for bar in bars.patches] == pytest.approx(result.mean.tolist())
    assert "hatched: masked" in heads.get_ylabel()
    assert plot(result, tmp_path / "word.png").stat().st_size > 0
