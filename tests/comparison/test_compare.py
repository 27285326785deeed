"""A comparison is fair: the same data, tokens, windows and budget for all, and every number can be found again."""

import json
import os
import signal

import pytest

import headway
from headway.comparison.budget import Budget
from headway.comparison.compare import compare
from headway.comparison.report import draw, markdown, text_table
from headway.comparison.scoring import _bins
from headway.config import load_recipe
from headway.costs import flops_per_token
from headway.data import read_split
from headway.errors import CheckpointError, ConfigError, DataError
from headway.models import NGram

TEXT = "".join(f"the {a} sat on the {b}. the {b} saw the {a}.\n" for a in ("cat", "dog", "cow") for b in ("mat", "hat"))
SMALL = {
    "params": 20_000,
    "context": 32,
    "settings": ["tokenizer.kind=char", "train.device=cpu", "data.valid_fraction=0.2"],
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "text.txt"
    file.write_text(TEXT * 8)
    return str(file)


@pytest.fixture(scope="module")
def contest(text, tmp_path_factory):
    place = tmp_path_factory.mktemp("compare") / "out"
    said = []
    return compare(data=text, tokens=20_000, out=place, say=said.append, **SMALL), place, said


def test_all_learn_from_as_many_tokens_and_are_as_large(contest):
    found, _, _ = contest
    assert [row.name for row in found.rows] == ["ngram", "nplm", "rnn", "lstm", "gru", "gpt", "llama"]
    for row in found.rows[1:]:
        assert row.n_tokens == pytest.approx(20_000, rel=0.03)  # in whole steps
        assert 10_000 < row.n_params < 40_000
        assert row.flops == row.n_tokens * flops_per_token(headway.load(row.run).config, 32) > 0
        assert row.curve[-1].tokens == row.n_tokens
        assert len(row.curve) == 8
        assert row.sample.startswith(found.prompt[:12])
    assert found.rows[0].flops == 0
    assert found.rows[0].curve == []


def test_what_has_changed_since_is_not_gone_on_with(text, tmp_path):
    data = tmp_path / "mine.txt"
    data.write_text(TEXT * 8)
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[model]\nfamily = "ngram"\norder = 2\n')
    out = tmp_path / "out"
    compare([str(recipe)], data=str(data), tokens=100, out=out, **SMALL)
    recipe.write_text('[model]\nfamily = "ngram"\norder = 3\n')
    with pytest.raises(ConfigError, match="was trained by another recipe than mine is now"):
        compare([str(recipe), "ngram"], data=str(data), tokens=100, out=out, resume=True, **SMALL)
    recipe.write_text('[model]\nfamily = "ngram"\norder = 2\n')
    data.write_text(TEXT * 7 + "another end")
    with pytest.raises(DataError, match="has changed since"):
        compare([str(recipe), "ngram"], data=str(data), tokens=100, out=out, resume=True, **SMALL)


def test_a_run_that_may_know_the_answers_is_named(text, tmp_path):
    compare(["ngram"], data=text, tokens=100, out=tmp_path / "before", **SMALL)
    run, said = str(tmp_path / "before" / "ngram"), []
    settings = [*SMALL["settings"], "data.test_fraction=0.2"]
    given = {**SMALL, "settings": settings, "data": text, "tokens": 100}
    found = compare(["ngram", run], out=tmp_path / "now", say=said.append, **given)
    assert [row.name for row in found.rows] == ["ngram", run]  # two of one name are told apart by their place
    assert any(f"{run} has learned from text.txt with data.test_fraction=0" in line for line in said)
    assert "of the test part" in text_table(found)
    said.clear()
    alone = compare([run], data=text, out=tmp_path / "alone", say=said.append, settings=SMALL["settings"], context=32)
    assert not any("may know" in line for line in said)
    assert "as they were trained" in text_table(alone)


def test_lengths_are_counted_in_the_same_tokens_for_all(tmp_path):
    small = {"params": 20_000, "tokens": 500, "limit": 60}
    settings = ["train.device=cpu"]
    compare(["seq2seq"], data="dates", out=tmp_path / "chars", settings=settings, **small)
    words = [*settings, "tokenizer.kind=word", "tokenizer.min_frequency=1"]
    run = str(tmp_path / "chars" / "seq2seq")
    found = compare(["bahdanau", run], data="dates", out=tmp_path / "words", settings=words, **small)
    theirs = [[(some.least, some.most, some.n) for some in row.by_length] for row in found.rows]
    assert theirs[0] == theirs[1]
    assert len(theirs[0]) > 0


def test_a_table_of_two_columns_is_pairs_wherever_it_is_named(tmp_path):
    file = tmp_path / "more.tsv"
    file.write_text("".join(f"{i}th of May 1987\t1987-05-{i:02}\n" for i in range(10, 29)))
    given = {"params": 20_000, "tokens": 300, "limit": 40, "settings": ["train.device=cpu"]}
    found = compare(["seq2seq"], data="dates", longer=str(file), out=tmp_path / "out", **given)
    assert sum(some.n for some in found.rows[0].by_length) >= 50
    (tmp_path / "plain.txt").write_text("no pairs")
    with pytest.raises(DataError, match="holds text, and not pairs: name two files as"):
        compare(["seq2seq"], data="dates", longer=str(tmp_path / "plain.txt"), out=tmp_path / "no", **given)


def test_scores_are_those_of_the_best_checkpoint_in_the_same_windows(contest, text):
    found, _, _ = contest
    documents = list(read_split(load_recipe(found.rows[1].run).data, "valid"))
    for row in found.rows:
        score = headway.evaluate(headway.load(row.run), documents, context=32)
        assert row.scores["bits_per_byte"] == pytest.approx(score.bits_per_byte, abs=1e-6)
        assert row.scores["perplexity"] == pytest.approx(score.perplexity, rel=1e-6)
        if row.curve:
            assert row.scores["bits_per_byte"] == pytest.approx(min(point.score for point in row.curve), abs=1e-6)


def test_learning_shows(contest):
    """Knowing only how often each letter comes is 3.7 bits per byte here; all of these do better."""
    found, _, _ = contest
    for row in found.rows:
        assert row.scores["bits_per_byte"] < 3.0, row.name


def test_what_is_done_is_not_done_again(contest, text):
    found, place, _ = contest
    said = []
    again = compare(data=text, tokens=20_000, out=place, resume=True, say=said.append, **SMALL)
    assert [line for line in said if line.startswith("done")] == [
        f"done        {row.name}, before" for row in found.rows
    ]
    assert again.rows == found.rows
    with pytest.raises(ConfigError, match="was begun with tokens=20000, not 30000"):
        compare(data=text, tokens=30_000, out=place, resume=True, **SMALL)
    with pytest.raises(CheckpointError, match="is there already"):
        compare(data=text, tokens=20_000, out=place, **SMALL)


def test_a_run_of_ones_own_takes_part_as_it_is(contest, text, tmp_path):
    found, _, _ = contest
    mine = found.rows[2]
    again = compare([mine.run, "ngram"], data=text, tokens=20_000, out=tmp_path / "out", **SMALL)
    assert again.rows[0].name == "rnn"
    assert again.rows[0].scores["bits_per_byte"] == pytest.approx(mine.scores["bits_per_byte"], abs=1e-6)
    assert again.rows[0].n_tokens == mine.n_tokens


def test_settings_are_for_all_or_for_one(text, tmp_path):
    asked = {**SMALL, "settings": [*SMALL["settings"], "train.seed=7", "model.dropout=0.1", "gpt:train.lr=1e-4"]}
    compare(["ngram", "lstm", "gpt"], data=text, tokens=2_000, out=tmp_path / "out", **asked)
    lstm, gpt, ngram = (load_recipe(tmp_path / "out" / name) for name in ("lstm", "gpt", "ngram"))
    assert lstm.train.seed == gpt.train.seed == 7
    assert lstm.model.dropout == gpt.model.dropout == 0.1
    assert gpt.train.lr == 1e-4 != lstm.train.lr
    assert ngram.model.order == 5


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("lstm:train.lr=1e-4", "is for a contestant that is trained, and 'lstm' is none"),
        ("model.dropot=0.1", "no contestant has such a setting.*Did you mean 'dropout'"),
        ("train.steps=3", "asked for by --tokens"),
        ("gpt:data.path=pydocs", "asked for by --data"),
        ("gpt:tokenizer.kind=word", "the same for all"),
    ],
)
def test_a_setting_that_would_change_nothing_or_be_unfair_is_refused(text, tmp_path, setting, message):
    with pytest.raises(ConfigError, match=message):
        compare(["gpt", "ngram"], data=text, tokens=10, out=tmp_path / "new", settings=[setting])
    assert not (tmp_path / "new").exists()


def test_settings_of_the_model_leave_it_as_large_as_asked(text, tmp_path):
    asked = {**SMALL, "settings": [*SMALL["settings"], "gpt:model.n_layers=8"]}
    found = compare(["gpt"], data=text, tokens=500, out=tmp_path / "out", **asked)
    assert 12_000 < found.rows[0].n_params < 30_000
    assert load_recipe(found.rows[0].run).model.n_layers == 8


def test_recipes_take_part_and_who_cannot_is_refused_before_anyone_is_trained(text, tmp_path):
    (tmp_path / "mine.toml").write_text(
        '[model]\nname = "gpt-tiny"\ncontext = 16\n[train]\naverage = 2\nbatch_size = 4\n'
    )
    (tmp_path / "bert.toml").write_text('[model]\nname = "bert-mini"\n')
    asked = {**SMALL, "context": None}
    found = compare([str(tmp_path / "mine.toml"), "rnn"], data=text, tokens=2_000, out=tmp_path / "out", **asked)
    assert found.context == 16
    assert [row.name for row in found.rows] == ["mine", "rnn"]
    assert found.rows[0].n_tokens == pytest.approx(2_000, rel=0.05)
    with pytest.raises(ConfigError, match="mine has a context of 16, and windows are of 32: --context 16"):
        compare([str(tmp_path / "mine.toml")], data=text, tokens=2_000, out=tmp_path / "new", **SMALL)
    for other in (str(tmp_path / "bert.toml"), "reverse"):
        with pytest.raises(ConfigError, match="which is not what is asked of text"):
            compare(["rnn", other], data=text, tokens=2_000, out=tmp_path / "new", **SMALL)
    assert not (tmp_path / "new").exists()


def test_an_interrupted_comparison_goes_on(text, tmp_path, monkeypatch):
    def count(model, texts, fit=NGram.fit_texts):
        fit(model, texts)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(NGram, "fit_texts", count)
        assert compare(["ngram", "rnn"], data=text, tokens=2_000, out=tmp_path / "out", **SMALL) is None

    def stop(progress):
        if progress.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    again = {"data": text, "tokens": 2_000, "out": tmp_path / "out", "resume": True, **SMALL}
    assert compare(["ngram", "rnn"], report=stop, **again) is None
    found = compare(["ngram", "rnn"], **again)
    whole = compare(["ngram", "rnn"], data=text, tokens=2_000, out=tmp_path / "whole", **SMALL)
    assert [row.scores for row in found.rows] == [row.scores for row in whole.rows]


def test_a_prompt_longer_than_the_context_is_cut(text, tmp_path):
    asked = {**SMALL, "context": 12}
    found = compare(["gpt", "rnn"], data=text, tokens=500, prompt="the cat sat on the mat", out=tmp_path / "o", **asked)
    assert found.rows[0].sample.startswith("the ca")
    assert found.rows[1].sample.startswith("the cat sat on the mat")


def test_by_the_clock_all_have_the_same_time(text, tmp_path):
    found = compare(["rnn", "gpt"], data=text, seconds=1.0, out=tmp_path / "out", **SMALL)
    for row in found.rows:
        assert 1.0 <= row.seconds < 3.0
        assert len(row.curve) >= 2


@pytest.mark.parametrize("data", ["reverse:2", "tsv"])
def test_pairs_are_scored_by_what_is_written_and_by_length(data, tmp_path):
    if data == "tsv":
        data = str(tmp_path / "pairs.tsv")
        rows = [f"{'a b c d e'[:n]}\t{'A B C D E'[:n]}" for n in (1, 3, 5, 7, 9)] * 40
        (tmp_path / "pairs.tsv").write_text("\n".join(f"{i} {row}" for i, row in enumerate(rows)))
    longer = "reverse:4" if data == "reverse:2" else None
    asked = {"params": 30_000, "context": 64, "limit": 200, "settings": ["train.device=cpu", "data.pairs=1,2"]}
    if longer:
        asked["settings"] = asked["settings"][:1]
    found = compare(data=data, tokens=3_000, longer=longer, out=tmp_path / "out", **asked)
    assert [row.name for row in found.rows] == ["seq2seq", "bahdanau", "transformer"]
    assert found.metric == ("exact_match" if longer else "bleu")
    for row in found.rows:
        assert set(row.scores) == ({"exact_match"} if longer else {"exact_match", "bleu"})
        assert 0 < sum(some.n for some in row.by_length) <= 400
        assert longer is None or (all(some.n >= 10 for some in row.by_length) and len(row.by_length) > 3)
    if longer:
        assert found.longest < max(some.most for some in found.rows[0].by_length)
    assert "by the number of tokens of the source" in text_table(found)
    assert draw(found, tmp_path / "lengths.png").stat().st_size > 5_000


@pytest.mark.parametrize("most", [1, 9, 10, 11, 37, 200, 1234])
def test_every_length_is_in_one_range(most):
    ranges = _bins([length for length in range(1, most + 1) for _ in range(12)])
    assert len(ranges) <= 10
    for length in range(1, most + 1):
        assert sum(a <= length <= b for a, b in ranges) == 1


def test_it_is_told_in_a_table_in_markdown_and_in_a_picture(contest, tmp_path):
    found, place, _ = contest
    table, document = text_table(found), markdown(found)
    for row in found.rows:
        for text in (table, document):
            assert f"{row.n_params:,}" in text
            assert f"{row.scores['bits_per_byte']:.4f}" in text
    assert draw(found, tmp_path / "compare.png").stat().st_size > 10_000
    kept = json.loads((place / "compare.json").read_text())
    assert [row["name"] for row in kept["rows"]] == [row.name for row in found.rows]


def test_what_cannot_be_compared_is_refused(text, tmp_path):
    with pytest.raises(ConfigError, match="seq2seq learns from pairs, and this is text; for it there are ngram"):
        compare(["seq2seq"], data=text)
    with pytest.raises(ConfigError, match=r"no contestant, recipe, TOML file or run 'lstn'.*Did you mean 'lstm'"):
        compare(["lstn"], data=text)
    with pytest.raises(ConfigError, match="tokens=5, seconds=1: one of the two"):
        Budget(tokens=5, seconds=1)
    with pytest.raises(ConfigError, match="seconds=0 is no budget"):
        Budget(seconds=0)
    with pytest.raises(ConfigError, match="longer sentences are asked of pairs"):
        compare(["gpt"], data=text, longer="dates:3", out=tmp_path / "out")
