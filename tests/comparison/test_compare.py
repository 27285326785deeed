"""A comparison is fair: all models share data, tokenizer, context and budget, and every number can be reproduced."""

import json
import os
import re
import signal
from itertools import islice
from pathlib import Path

import pytest

import headway
from headway.comparison.budget import Budget, SharedSettings, shared_recipe
from headway.comparison.compare import compare
from headway.comparison.lineup import TEXT_TEMPLATES as TEMPLATES
from headway.comparison.manifest import check_same_settings
from headway.comparison.report import plot, render_markdown, render_text
from headway.comparison.scoring import ScoringOptions, TextEvaluator, first_words, length_ranges
from headway.config import load_recipe
from headway.costs import flops_per_token
from headway.data import RngKey, Seq2SeqDataset, TokenBudgetBatchSampler, read_split, synthetic_tasks
from headway.errors import CheckpointError, ConfigError, DataError
from headway.models import NGram
from headway.tokenizers import train as train_tokenizer
from headway.training.record_datasets import iter_pairs

TEXT = "".join(f"the {a} sat on the {b}. the {b} saw the {a}.\n" for a in ("cat", "dog", "cow") for b in ("mat", "hat"))
TOKENS = 15_000
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
def pairs(tmp_path_factory):
    """A table of two columns: letters and their capitals."""
    file = tmp_path_factory.mktemp("data") / "pairs.tsv"
    rows = [f"{'a b c d e'[:n]}\t{'A B C D E'[:n]}" for n in (1, 3, 5, 7, 9)] * 40
    file.write_text("\n".join(f"{i} {row}" for i, row in enumerate(rows)))
    return str(file)


@pytest.fixture(scope="module")
def timeline(text, tmp_path_factory):
    """All language models, trained once for the whole file."""
    return compare(data=text, tokens=TOKENS, out=tmp_path_factory.mktemp("compare") / "out", **SMALL)


@pytest.fixture(scope="module")
def shared(text):
    """What the recipes of a comparison are built from."""
    recipe = shared_recipe(text, SMALL["settings"])
    tokenizer = train_tokenizer("char", [TEXT])
    return SharedSettings(recipe, "text", 32, Budget(params=20_000, tokens=500), tokenizer, Path("tokenizer"))


# ── budget ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_token_budget_counts_both_sides_of_the_pairs_in_a_batch():
    """`tokens_per_batch` is rows × (longest source + longest target), as `TokenBudgetBatchSampler` has it."""
    tokenizer = train_tokenizer("char", ["abcdefghijklmnopqrstuvwxyz"])
    recipe = shared_recipe("reverse", ["train.tokens_per_batch=600"])
    shared = SharedSettings(recipe, "pairs", 32, Budget(tokens=20_000), tokenizer, Path("tokenizer"))
    planned = shared.recipe_for(load_recipe("reverse"), ["train.tokens_per_batch=600"], []).train.steps
    pairs = list(islice(iter_pairs(recipe, "train"), 2000))
    dataset = Seq2SeqDataset(pairs, tokenizer)
    sampler = TokenBudgetBatchSampler(dataset.lengths, 600)
    n_targets = sum(
        dataset.collate(sampler.indices(0, step), RngKey(0, 0)).n_targets for step in range(sampler.steps())
    )
    assert planned * n_targets / sampler.steps() == pytest.approx(20_000, rel=0.15)  # padding is not predicted


def test_all_models_have_the_same_budget(timeline):
    assert [result.name for result in timeline.results] == ["ngram", "nplm", "rnn", "lstm", "gru", "gpt", "llama"]
    for result in timeline.results[1:]:
        assert result.n_tokens == pytest.approx(TOKENS, rel=0.03)  # in whole steps
        assert 10_000 < result.n_params < 40_000
        assert result.flops == result.n_tokens * flops_per_token(headway.load(result.run).config, 32) > 0
        assert result.curve[-1].tokens == result.n_tokens
        assert len(result.curve) == 8
        assert result.sample.startswith(timeline.prompt[:12])
    assert timeline.results[0].flops == 0
    assert timeline.results[0].curve == []


def test_a_budget_in_seconds_gives_all_models_the_same_time(text, tmp_path):
    comparison = compare(["rnn", "gpt"], data=text, seconds=0.4, out=tmp_path / "out", **SMALL)
    for result in comparison.results:
        assert 0.4 <= result.seconds < 2.0
        assert len(result.curve) >= 2


def test_budgets_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="tokens=5 and seconds=1 are both set: choose one"):
        Budget(tokens=5, seconds=1)
    with pytest.raises(ConfigError, match="seconds=0 is not a budget"):
        Budget(seconds=0)


# ── scores ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_scores_are_those_of_the_best_checkpoint_with_the_shared_context(timeline):
    documents = list(read_split(load_recipe(timeline.results[1].run).data, "valid"))
    for result in timeline.results:
        score = headway.evaluate(headway.load(result.run), documents, context=32)
        assert result.scores["bits_per_byte"] == pytest.approx(score.bits_per_byte, abs=1e-6)
        assert result.scores["perplexity"] == pytest.approx(score.perplexity, rel=1e-6)
        if result.curve:
            assert result.scores["bits_per_byte"] == pytest.approx(min(point.score for point in result.curve), abs=1e-6)


def test_every_model_learns(timeline):
    """Letter frequencies alone give 3.7 bits per byte here."""
    for result in timeline.results:
        assert result.scores["bits_per_byte"] < 3.0, result.name


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("tement is a line of code that", "is a line of code"),  # cut out of "A statement is …"
        ("A statement is a line of code", "A statement is a line"),
        ("  statement is a line of code", "statement is a line of"),
        ("one two", "one two"),
        ("", ""),
    ],
)
def test_a_prompt_begins_at_a_word(text, prompt):
    assert first_words(text) == prompt


def test_a_prompt_longer_than_half_the_context_is_cut(shared):
    prompt = "the cat sat on the mat"
    evaluator = TextEvaluator(shared.recipe, 12, ScoringOptions(prompt=prompt, sample_tokens=4))
    gpt = headway.create("gpt", vocab_size=shared.tokenizer.vocab_size, d_model=8, n_heads=2, n_layers=1, context=12)
    rnn = headway.create("rnn", vocab_size=shared.tokenizer.vocab_size, d_model=8)
    gpt.tokenizer = rnn.tokenizer = shared.tokenizer
    assert evaluator.sample(gpt).startswith("the ca")
    assert not evaluator.sample(gpt).startswith(prompt)
    assert evaluator.sample(rnn).startswith(prompt)


@pytest.mark.parametrize("is_task", [True, False], ids=["task", "tsv"])
def test_models_of_pairs_are_scored_by_their_translations_and_by_length(is_task, pairs, tmp_path, monkeypatch):
    data, long_data = ("reverse:2", "reverse:4") if is_task else (pairs, None)
    monkeypatch.setitem(synthetic_tasks.task_pairs.__kwdefaults__, "n", 1_500)  # of 20,000 pairs
    settings = ["train.device=cpu", "eval.num_evals=1"]
    options = {"params": 20_000, "context": 64, "limit": 120, "settings": settings}
    comparison = compare(data=data, tokens=1_000, long_data=long_data, out=tmp_path / "out", **options)
    assert [result.name for result in comparison.results] == ["seq2seq", "bahdanau", "transformer"]
    assert comparison.metric == ("exact_match" if is_task else "bleu")
    for result in comparison.results:
        assert set(result.scores) == ({"exact_match"} if is_task else {"exact_match", "bleu"})
        assert 0 < sum(bucket.n for bucket in result.by_length) <= 240
        if is_task:
            assert all(bucket.n >= 10 for bucket in result.by_length)
            assert len(result.by_length) > 3
    if is_task:
        assert comparison.longest < max(bucket.max_tokens for bucket in comparison.results[0].by_length)
    assert "by the number of source tokens" in render_text(comparison)
    assert plot(comparison, tmp_path / "lengths.png").stat().st_size > 5_000


def test_lengths_are_counted_in_the_tokens_of_the_comparison(pairs, tmp_path):
    options = {"params": 20_000, "tokens": 200, "limit": 40, "data": pairs}
    chars, words = (["train.device=cpu", f"tokenizer.kind={kind}"] for kind in ("char", "word"))
    compare(["seq2seq"], out=tmp_path / "chars", settings=chars, **options)
    run = str(tmp_path / "chars" / "seq2seq")
    words.append("tokenizer.min_frequency=1")
    comparison = compare(["bahdanau", run], out=tmp_path / "words", settings=words, **options)
    first, second = ([(b.min_tokens, b.max_tokens, b.n) for b in result.by_length] for result in comparison.results)
    assert first == second != []


def test_long_data_may_be_a_table_of_two_columns(pairs, tmp_path):
    file = tmp_path / "more.tsv"
    file.write_text("".join(f"{i}th of May 1987\t1987-05-{i:02}\n" for i in range(10, 29)))
    options = {"params": 20_000, "tokens": 200, "settings": ["train.device=cpu", "tokenizer.kind=char"]}
    comparison = compare(["seq2seq"], data=pairs, long_data=str(file), out=tmp_path / "out", **options)
    assert sum(bucket.n for bucket in comparison.results[0].by_length) == int(comparison.size.split()[0]) + 19
    (tmp_path / "plain.txt").write_text("no pairs")
    with pytest.raises(DataError, match=r"plain\.txt"):
        compare(["seq2seq"], data=pairs, long_data=str(tmp_path / "plain.txt"), out=tmp_path / "no", **options)


@pytest.mark.parametrize("longest", [1, 9, 10, 11, 37, 200, 1234])
def test_every_length_is_in_exactly_one_range(longest):
    ranges = length_ranges([length for length in range(1, longest + 1) for _ in range(12)])
    assert len(ranges) <= 10
    for length in range(1, longest + 1):
        assert sum(low <= length <= high for low, high in ranges) == 1


# ── resume ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_resume_skips_finished_models_and_keeps_the_budget(timeline, text):
    messages = []
    options = {"data": text, "out": timeline.path, **SMALL}
    resumed = compare(tokens=TOKENS, resume=True, on_message=messages.append, **options)
    finished = [message for message in messages if message.startswith("finished")]
    assert finished == [f"finished    {result.name}, in an earlier run" for result in timeline.results]
    assert resumed.results == timeline.results
    with pytest.raises(ConfigError, match=f"was started with tokens={TOKENS}, not 30000"):
        compare(tokens=30_000, resume=True, **options)
    with pytest.raises(CheckpointError, match="already exists; choose another folder with --out"):
        compare(tokens=TOKENS, **options)


def test_resume_refuses_changed_recipes_and_data(tmp_path):
    data, recipe = tmp_path / "mine.txt", tmp_path / "mine.toml"
    data.write_text(TEXT * 8)
    recipe.write_text('[model]\nfamily = "ngram"\norder = 2\n')
    options = {"data": str(data), "tokens": 100, "out": tmp_path / "out", **SMALL}
    compare([str(recipe)], **options)
    recipe.write_text('[model]\nfamily = "ngram"\norder = 3\n')
    with pytest.raises(ConfigError, match="was trained with another recipe than mine has now"):
        compare([str(recipe), "ngram"], resume=True, **options)
    recipe.write_text('[model]\nfamily = "ngram"\norder = 2\n')
    data.write_text(TEXT * 7 + "another end")
    with pytest.raises(DataError, match="has changed since"):
        compare([str(recipe), "ngram"], resume=True, **options)


@pytest.mark.parametrize("content", ["", '{"data": ', "[1]", "[" * 100_000, '{"model_settings": 1}', '{"recipes": []}'])
def test_a_damaged_manifest_is_an_error(content, tmp_path):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged: restore it, or choose another --out"):
        check_same_settings(tmp_path, {"model_settings": {}}, finished=["gpt"])


def test_an_interrupted_comparison_resumes_to_the_same_scores(text, tmp_path, monkeypatch):
    names, options = ["ngram", "rnn"], {"data": text, "tokens": 1_200, **SMALL}

    def fit_and_interrupt(model, texts, fit=NGram.fit_texts):
        fit(model, texts)
        os.kill(os.getpid(), signal.SIGINT)

    def interrupt(progress):
        if progress.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(NGram, "fit_texts", fit_and_interrupt)
        assert compare(names, out=out, **options).interrupted
    assert compare(names, out=out, resume=True, on_step=interrupt, **options).interrupted
    resumed = compare(names, out=out, resume=True, **options)
    uninterrupted = compare(names, out=tmp_path / "uninterrupted", **options)
    assert [result.scores for result in resumed.results] == [result.scores for result in uninterrupted.results]


# ── candidates and settings ───────────────────────────────────────────────────────────────────────────────────────


def test_a_finished_run_is_scored_as_it_is(timeline, text, tmp_path):
    rnn = timeline.results[2]
    comparison = compare([rnn.run, "ngram"], data=text, tokens=100, out=tmp_path / "out", **SMALL)
    assert comparison.results[0].name == "rnn"
    assert comparison.results[0].scores["bits_per_byte"] == pytest.approx(rnn.scores["bits_per_byte"], abs=1e-6)
    assert comparison.results[0].n_tokens == rnn.n_tokens


def test_a_run_trained_with_another_split_gets_a_warning(text, timeline, tmp_path):
    run, messages = str(Path(timeline.path) / "ngram"), []
    settings = [*SMALL["settings"], "data.test_fraction=0.2"]
    options = {**SMALL, "settings": settings, "data": text, "tokens": 100, "on_message": messages.append}
    comparison = compare(["ngram", run], out=tmp_path / "out", **options)
    assert [result.name for result in comparison.results] == ["ngram", run]  # the path, where two names are equal
    assert any(f"{run} was trained on text.txt with data.test_fraction=0" in message for message in messages)
    assert "scored on the test split" in render_text(comparison)
    messages.clear()
    options |= {"settings": SMALL["settings"], "tokens": None, "params": None}
    comparison = compare([run], out=tmp_path / "alone", **options)
    assert not any(message.startswith("warning") for message in messages)
    assert "as they were trained" in render_text(comparison)


def test_recipes_keep_their_model_and_limit_the_context(text, tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[model]\nname = "gpt-tiny"\ncontext = 16\n[train]\naverage_checkpoints = 2\nbatch_size = 4\n')
    options = {"data": text, "tokens": 1_000, **SMALL}
    comparison = compare([str(recipe), "ngram"], out=tmp_path / "out", **{**options, "context": None})
    assert comparison.context == 16
    assert [result.name for result in comparison.results] == ["mine", "ngram"]
    assert comparison.results[0].n_tokens == pytest.approx(1_000, rel=0.05)
    with pytest.raises(ConfigError, match="mine has a context of 16, less than --context 32: use --context 16"):
        compare([str(recipe)], out=tmp_path / "new", **options)


def test_settings_are_for_all_models_or_for_one(shared):
    settings, own = ["train.seed=7", "model.dropout=0.1"], ["train.lr=1e-4"]
    lstm, ngram = (shared.recipe_for(TEMPLATES[name], settings, []) for name in ("lstm", "ngram"))
    gpt = shared.recipe_for(TEMPLATES["gpt"], settings, own)
    assert lstm.train.seed == gpt.train.seed == ngram.train.seed == 7
    assert lstm.model.dropout == gpt.model.dropout == 0.1
    assert gpt.train.lr == 1e-4 != lstm.train.lr
    assert ngram.model.order == 5  # an n-gram has no dropout


def test_settings_of_the_model_leave_its_size_unchanged(shared):
    recipe = shared.recipe_for(TEMPLATES["gpt"], [], ["model.n_layers=8"])
    assert recipe.model.n_layers == 8
    assert 12_000 < headway.create(recipe.model, device="meta").n_params < 30_000


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("lstm:train.lr=1e-4", "'lstm' is not one of the models trained here"),
        ("model.dropot=0.1", "no model in this comparison has such a setting.*Did you mean 'dropout'"),
        ("train.steps=3", "set it with --tokens"),
        ("gpt:data.path=pydocs", "set it with --data"),
        ("gpt:tokenizer.kind=word", "shared by all models"),
    ],
)
def test_settings_without_effect_and_unfair_ones_are_refused(text, tmp_path, setting, message):
    with pytest.raises(ConfigError, match=message):
        compare(["gpt", "ngram"], data=text, tokens=10, out=tmp_path / "new", settings=[setting])
    assert not (tmp_path / "new").exists()


def test_models_that_do_not_fit_the_data_are_refused_before_training(text, tmp_path):
    (tmp_path / "bert.toml").write_text('[model]\nname = "bert-mini"\n')
    out = tmp_path / "new"
    for name in (str(tmp_path / "bert.toml"), "reverse"):
        with pytest.raises(ConfigError, match=r"has the objective .* models of text are trained with 'causal'"):
            compare(["rnn", name], data=text, out=out)
    with pytest.raises(ConfigError, match="seq2seq learns from pairs, but the data is text; choose from ngram"):
        compare(["seq2seq"], data=text, out=out)
    with pytest.raises(ConfigError, match=r"no model, recipe, TOML file or run 'lstn'.*Did you mean 'lstm'"):
        compare(["lstn"], data=text, out=out)
    with pytest.raises(ConfigError, match="'rnn' is listed twice"):
        compare(["rnn", "rnn"], data=text, out=out)
    with pytest.raises(ConfigError, match="long_data='dates:3' is for pairs"):
        compare(["gpt"], data=text, long_data="dates:3", out=out)
    assert not out.exists()


# ── report ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_results_are_rendered_as_text_markdown_json_and_a_plot(timeline, tmp_path):
    for document in (render_text(timeline), render_markdown(timeline)):
        for result in timeline.results:
            assert f"{result.n_params:,}" in document
            assert f"{result.scores['bits_per_byte']:.4f}" in document
            is_whole = result.sample.startswith(timeline.prompt)  # a short context cuts the prompt
            title = f'{result.name} continues "{timeline.prompt}":' if is_whole else f"{result.name} writes:"
            assert title in document
        assert "continues" in document
        best = min(timeline.results, key=lambda result: result.scores["bits_per_byte"])
        (marked,) = [line for line in document.splitlines() if re.search(r"\bbest\b", line)]
        assert f" {best.name} " in marked
    assert plot(timeline, tmp_path / "compare.png").stat().st_size > 10_000
    saved = json.loads((Path(timeline.path) / "compare.json").read_text())
    assert [result["name"] for result in saved["results"]] == [result.name for result in timeline.results]
