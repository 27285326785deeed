"""headway eval on files other than the data of the run, which are read as that data was."""

import json
from pathlib import Path

import pytest

import headway
from headway.training.run_evaluation import evaluate_split
from tests.cli.running import run
from tests.plugin_registries import restored_registries
from tests.training.recipes import for_objective, make

NEW_FILES = {"pairs": "new.tsv", "classify": "new.tsv", "tag": "new.conll", "span": "new.json", "masked": "new.txt"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(objective, folder, **train):
    """A run of two steps; returns its recipe."""
    recipe = for_objective(objective, folder, steps=2, **train)
    headway.train(recipe, out="runs/x", quiet=True)
    return headway.load_recipe("runs/x")


@pytest.mark.parametrize("objective", NEW_FILES)
def test_a_file_of_the_same_format_is_scored_as_a_split_of_the_run_is(objective, folder, capsys):
    recipe = train(objective, folder)
    file = NEW_FILES[objective]
    data = recipe.data.path
    (folder / file).write_text(Path(data).read_text())
    code, out, err = run(f"eval runs/x {file} --json {'--num-beams 1' if objective == 'pairs' else ''}", capsys)
    assert code == 0, err
    score = json.loads(out)
    assert score["text"] == file
    # the same records as the validation split, if that is the whole file
    whole = recipe.replace(data=recipe.data.replace(valid_path=data))
    expected = evaluate_split(headway.load("runs/x"), whole)
    assert score["nats_per_target"] == pytest.approx(expected.nats_per_target, rel=1e-5)
    assert score["n_targets"] == expected.n_targets


@pytest.fixture
def tickets(folder):
    """A language model of the column `body` of a table."""
    rows = [json.dumps({"id": i, "body": "one two three four five six. " * 3 + str(i), "x": "y"}) for i in range(40)]
    (folder / "tickets.jsonl").write_text("\n".join(rows) + "\n")
    data = {"path": "tickets.jsonl", "text": "body"}
    headway.train(make(folder, data=data, train={"steps": 2}), out="runs/tickets", quiet=True)


def test_a_language_model_reads_the_column_it_was_trained_on(tickets, folder, capsys):
    (folder / "new.jsonl").write_text('{"id": 1, "body": "one two", "other": "three"}\n')
    (folder / "new.txt").write_text("one two")
    by_format = {f: json.loads(run(f"eval runs/tickets new.{f} --json", capsys)[1]) for f in ("jsonl", "txt")}
    assert by_format["jsonl"]["n_bytes"] == len("one two")
    assert by_format["jsonl"]["bits_per_byte"] == by_format["txt"]["bits_per_byte"]
    (folder / "other.jsonl").write_text('{"id": 1, "text": "one two"}\n')
    code, _, err = run("eval runs/tickets other.jsonl", capsys)
    assert code == 1
    assert "there is no column 'body'. The columns are: 'id', 'text'" in err.replace(" Did you mean 'id'?", "")


def test_other_files_than_those_of_the_task_are_refused(folder, capsys):
    train("classify", folder)
    (folder / "new.txt").write_text("the red cat\n")
    code, _, err = run("eval runs/x new.txt", capsys)
    assert code == 1
    assert (
        "new.txt holds text, but this model is scored on labelled texts: give a table with the columns of the run"
        in err
    )
    (folder / "new.tsv").write_text("text\tlabel\nthe red cat\tvehicle\n")
    code, _, err = run("eval runs/x new.tsv", capsys)
    assert code == 1
    assert "new.tsv cannot be scored: " in err
    assert "vehicle" in err
    code, _, err = run("eval runs/x --text red", capsys)
    assert code == 2
    assert (
        "a Classifier is scored on labelled texts: headway eval MODEL FILE.csv; to predict, use `headway classify`"
        in err
    )


@pytest.mark.parametrize("objective", ["classify", "tag", "span"])
def test_a_model_directory_is_scored_as_its_run_is(objective, folder, capsys):
    train(objective, folder)
    assert run("convert runs/x model", capsys)[0] == 0
    data = headway.load_recipe("runs/x").data.path
    (folder / NEW_FILES[objective]).write_text(Path(data).read_text())
    scores = [
        json.loads(run(f"eval {model} {NEW_FILES[objective]} --json", capsys)[1]) for model in ("runs/x", "model")
    ]
    for score in scores:
        del score["model"]
    assert scores[0] == scores[1]


def test_columns_of_a_file_are_named_by_set(folder, capsys):
    train("classify", folder)
    (folder / "other.csv").write_text("stars,body\ncolour,the red cat\nanimal,the dog red\n")
    code, out, err = run("eval runs/x other.csv --set data.text=body --set data.label=stars --json", capsys)
    assert code == 0, err
    assert json.loads(out)["n_texts"] == 2
    (folder / "plain.csv").write_text("the red cat,colour\nthe dog red,animal\n")
    code, out, err = run("eval runs/x plain.csv --set data.text=1 --set data.label=2 --json", capsys)
    assert code == 0, err
    assert json.loads(out)["n_texts"] == 2
    code, _, err = run("eval runs/x other.csv --set train.steps=3", capsys)
    assert code == 2
    assert "'train.steps=3' is not about reading data: choose from data.format, data.text" in err


@pytest.mark.parametrize(("objective", "name"), [("classify", "accuracy"), ("tag", "F1"), ("span", "F1")])
def test_two_models_are_compared_by_paired_bootstrap(objective, name, folder, capsys):
    train(objective, folder)
    headway.train(for_objective(objective, folder, steps=1, seed=2), out="runs/y", quiet=True)
    code, out, err = run("eval runs/x --against runs/y --limit 20 --json", capsys)
    assert code == 0, err
    comparison = json.loads(out)["comparison"]
    assert comparison["name"] == name
    assert 0 < comparison["p"] <= 1
    code, out, _ = run("eval runs/x --against runs/x", capsys)
    assert code == 0
    assert f"{name:<16}" in out
    assert "p = 1.000, may be chance" in out


def test_the_second_system_must_be_of_the_same_kind(folder, capsys):
    train("classify", folder)
    headway.train(for_objective("tag", folder, steps=1), out="runs/y", quiet=True)
    code, _, err = run("eval runs/x --against runs/y", capsys)
    assert code == 2
    assert "runs/y is a Tagger, and runs/x is a Classifier: name two of a kind" in err


def test_a_file_of_answers_is_the_second_system(folder, capsys):
    train("span", folder)
    questions = json.loads(Path(headway.load_recipe("runs/x").data.path).read_text())
    ids = [q["id"] for a in questions["data"] for p in a["paragraphs"] for q in p["qas"]]
    (folder / "answers.json").write_text(json.dumps(dict.fromkeys(ids, "")))
    code, out, err = run("eval runs/x --against answers.json --json", capsys)
    assert code == 0, err
    assert json.loads(out)["comparison"]["second"] == 0


def test_a_translator_is_scored_by_the_metric_of_its_run(folder, capsys):
    with restored_registries():
        headway.register("metric", "n_words", lambda texts, references: sum(len(r.split()) for r in references))
        recipe = for_objective("pairs", folder, steps=2)
        recipe = recipe.replace(eval=recipe.eval.replace(metric="n_words"))
        headway.train(recipe, out="runs/x", quiet=True)
        (folder / "new.tsv").write_text("source\ttarget\nred green\tgreen red\ncat dog\tdog cat\n")
        assert json.loads(run("eval runs/x new.tsv --json --limit 1", capsys)[1])["n_words"] == 2
        assert "\nn_words         4\n" in run("eval runs/x new.tsv", capsys)[1]


def test_corrections_and_summaries_are_scored_by_name(folder, capsys):
    (folder / "wrong").write_text("She buy an red car .\nWe sees the dog .\n")
    (folder / "right").write_text("She buys a red car .\nWe see the dog .\n")
    (folder / "other").write_text("She bought a red car .\nWe saw the dog .\n")
    command = "eval --hypotheses {} -r right -r other --metric gleu --sources wrong --metric rougeL --json"
    kept, corrected = (json.loads(run(command.format(file), capsys)[1]) for file in ("wrong", "right"))
    assert kept["gleu"] < 5 < 60 < corrected["gleu"] < 100
    assert corrected["rouge1"] == corrected["rouge2"] == corrected["rougeL"] == 100  # of the better reference
    assert 0 < kept["rouge2"] < kept["rouge1"] < 100
    printed = run("eval --hypotheses right -r right --metric gleu --sources wrong --metric rouge1", capsys)[1]
    labels = ("GLEU", "ROUGE-1", "ROUGE-2", "ROUGE-L")
    assert "\n" + "".join(f"{label:<16}100.00\n" for label in labels) in printed


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--metric glue", "no metric 'glue' for texts with references. Did you mean 'gleu'?"),
        ("--metric gleu", "--sources: --metric gleu compares with the texts that were rewritten: add --sources FILE"),
        ("--sources wrong", "--sources: is for --metric gleu: add it, or leave this option out"),
    ],
)
def test_metrics_that_cannot_be_computed_are_refused(options, problem, folder, capsys):
    (folder / "wrong").write_text("a\n")
    code, _, err = run(f"eval --hypotheses wrong -r wrong {options}", capsys)
    assert code == 2
    assert problem in " ".join(err.split())


def test_a_run_with_gleu_is_scored_with_its_sources(folder, capsys):
    recipe = for_objective("pairs", folder, steps=2)
    headway.train(recipe.replace(eval=recipe.eval.replace(metric="gleu")), out="runs/x", quiet=True)
    (folder / "new.tsv").write_text("source\ttarget\nred green\tgreen red\ncat dog\tdog cat\n")
    document = json.loads(run("eval runs/x new.tsv --json", capsys)[1])
    assert 0 <= document["gleu"] <= 100
    assert "gleu" in json.loads((folder / "runs/x/log.jsonl").read_text().splitlines()[-1])
    assert json.loads(run("eval runs/x new.tsv --metric rouge1 --json", capsys)[1]).keys() > {"gleu", "rouge2"}
