"""headway classify."""

import csv
import json
import shutil
from pathlib import Path

import pytest

import headway
from tests.cli.running import run


@pytest.fixture(autouse=True)
def _in_a_copy_of_the_workspace(workspace, tmp_path, monkeypatch):
    for name in ("labels", "demo"):
        shutil.copytree(workspace / "runs" / name, tmp_path / "runs" / name)
    for name in ("texts.txt", "reviews.csv"):
        shutil.copy(workspace / name, tmp_path)
    monkeypatch.chdir(tmp_path)


def test_one_text_shows_every_label_with_a_bar(capsys):
    code, out, _ = run("classify runs/labels 'The cat sat.'", capsys)
    assert code == 0
    text, *labels = out.splitlines()
    assert text == "The cat sat."
    assert {line.split()[0] for line in labels} == {"cat", "dog"}
    percentages = [float(line.split()[1].rstrip("%")) for line in labels]
    assert sum(percentages) == pytest.approx(100, abs=0.2)
    assert percentages == sorted(percentages, reverse=True)


def test_several_texts_are_a_line_each(capsys):
    code, out, _ = run("classify runs/labels --in texts.txt", capsys)
    assert code == 0
    header, *rows = out.splitlines()
    assert header.split() == ["label", "probability", "text"]
    assert [row.split(maxsplit=2)[2] for row in rows] == ["The cat sat.", "The dog sat on the mat."]
    code, out, _ = run("classify runs/labels --in texts.txt --top 1", capsys)
    assert out.count("and 1 less probable: --top 2 shows all") == 2


def test_json_files_and_python_agree(capsys):
    model = headway.load("runs/labels")
    expected = headway.classify(model, ["The cat sat.", "The dog sat on the mat."])
    code, out, _ = run("classify runs/labels --in texts.txt --json", capsys)
    assert code == 0
    texts = json.loads(out)["texts"]
    assert [text["label"] for text in texts] == [result.label for result in expected]
    for text, result in zip(texts, expected, strict=True):
        assert text["probabilities"] == pytest.approx(dict(result.probabilities), abs=1e-6)
        assert text["probability"] == pytest.approx(result.probability)
    code, out, err = run("classify runs/labels --in texts.txt --out labels.jsonl", capsys)
    assert (code, out) == (0, "")
    assert "2 texts in " in err
    with open("labels.jsonl") as file:
        assert [json.loads(line) for line in file] == texts


def test_a_table_keeps_its_own_label_under_another_name(capsys):
    code, out, _ = run("classify runs/labels --in reviews.csv --json", capsys)
    assert code == 0
    texts = json.loads(out)["texts"]
    assert len(texts) == 6
    for text in texts:
        assert text.get("input_label", text["label"]) in ("cat", "dog")
    with open("other.csv", "w") as file:
        file.write("id,body\n7,The cat sat.\n")
    code, out, _ = run("classify runs/labels --in other.csv --column body --json", capsys)
    assert code == 0
    [text] = json.loads(out)["texts"]
    assert (text["text"], text["id"]) == ("The cat sat.", "7")


def test_a_pair_is_classified_together(capsys):
    with open("pairs.jsonl", "w") as file:
        file.write('{"text": "The cat sat.", "text_pair": "The dog sat."}\n')
    answers = []
    for command in ("--in pairs.jsonl", "'The cat sat.' --text-pair 'The dog sat.'"):
        code, out, err = run(f"classify runs/labels {command} --json", capsys)
        assert code == 0, err
        answers.append(json.loads(out)["texts"])
    assert answers[0] == answers[1]


def test_a_run_finds_the_columns_that_it_was_trained_on(capsys):
    rows = "".join(f"the {a} sat,{b} there,{a == b}\n" for a in ("cat", "dog") for b in ("cat", "dog")) * 10
    with open("pairs.csv", "w") as file:
        file.write("first,second,same\n" + rows)
    settings = "data.path=pairs.csv data.text=first data.text_pair=second data.label=same train.epochs=1"
    options = " ".join(f"--set {setting}" for setting in [*settings.split(), "model.family=bow", "model.n_buckets=50"])
    assert run(f"train classify --out runs/pairs {options}", capsys)[0] == 0
    code, out, err = run("classify runs/pairs --in pairs.csv --json", capsys)
    assert code == 0, err
    texts = json.loads(out)["texts"]
    assert (len(texts), texts[1]["text"], texts[1]["text_pair"]) == (40, "the cat sat", "dog there")
    assert texts[0]["probabilities"] != texts[1]["probabilities"]
    code, _, err = run("classify runs/pairs 'the cat sat'", capsys)
    message = "was trained on pairs of texts (first and second), and text 1 has no second one: give --text-pair"
    assert (code, message in err) == (1, True), err
    with open("other.csv", "w") as file:
        file.write("a,b\nthe cat sat,dog there\n")
    code, out, _ = run("classify runs/pairs --in other.csv --column a --pair-column b --json", capsys)
    assert (code, json.loads(out)["texts"][0]["probabilities"]) == (0, texts[1]["probabilities"])
    code, _, err = run("classify runs/pairs --in other.csv --column a --pair-column c", capsys)
    assert (code, "other.csv has no column 'c'" in err) == (2, True)
    code, _, err = run("classify runs/pairs --in other.csv --column a --pair-column a", capsys)
    assert (code, "'a' is the column of the first text" in err) == (2, True)
    [checkpoint] = Path("runs/pairs/checkpoints").iterdir()
    assert json.loads(run(f"classify {checkpoint} --in pairs.csv --json", capsys)[1])["texts"] == texts
    code, _, err = run("classify runs/labels 'the cat' --text-pair dog", capsys)
    assert (code, "note: runs/labels was trained on single texts, not on pairs" in err) == (0, True)


def test_the_second_text_may_be_in_a_column_called_text(capsys):
    with open("pairs.csv", "w") as file:
        file.write("question,text,same\n" + "the cat,a dog,yes\nthe dog,a dog,no\n" * 20)
    settings = "data.path=pairs.csv data.text=question data.text_pair=text data.label=same train.epochs=1"
    options = " ".join(f"--set {setting}" for setting in [*settings.split(), "model.family=bow", "model.n_buckets=50"])
    assert run(f"train classify --out runs/pairs {options}", capsys)[0] == 0
    [text, *_] = json.loads(run("classify runs/pairs --in pairs.csv --json", capsys)[1])["texts"]
    assert (text["text"], text["text_pair"]) == ("the cat", "a dog")


def test_columns_in_quotes_are_no_other_columns(capsys):
    with open("quoted.csv", "w") as file:
        file.write('id,text,"notes;text_pair"\n1,the cat,a\n')
    assert run("classify runs/labels --in quoted.csv", capsys)[0] == 0


def test_a_table_keeps_fields_of_any_kind(capsys):
    with open("in.jsonl", "w") as file:
        file.write('{"text": "the cat", "ids": [1, 2], "more": {"a": null}}\n')
    assert run("classify runs/labels --in in.jsonl --out out.csv", capsys)[0] == 0
    with open("out.csv") as file:
        [row] = csv.DictReader(file)
    assert (row["ids"], row["more"]) == ("[1, 2]", '{"a": null}')
    assert list(row)[-2:] == ["p(cat)", "p(dog)"]


def test_a_long_text_without_spaces_is_cut(capsys):
    assert run(f"classify runs/labels {'a' * 400}", capsys)[1].splitlines()[0] == "a" * 300 + "…"


def test_a_table_of_results(capsys):
    assert run("classify runs/labels --in reviews.csv --out labels.csv", capsys)[0] == 0
    with open("labels.csv") as file:
        rows = list(csv.DictReader(file))
    texts = json.loads(run("classify runs/labels --in reviews.csv --json", capsys)[1])["texts"]
    assert [row["label"] for row in rows] == [text["label"] for text in texts]
    for row, text in zip(rows, texts, strict=True):
        assert float(row["p(cat)"]) == text["probabilities"]["cat"]
    code, _, err = run("classify runs/labels --in reviews.csv --out labels.tsv", capsys)
    assert (code, "labels.tsv is not a format for results: use .csv or .jsonl" in err) == (2, True)


def test_blank_lines_are_noted(capsys):
    with open("blank.txt", "w") as file:
        file.write("The cat.\n\n  \nThe dog.\n")
    code, _, err = run("classify runs/labels --in blank.txt", capsys)
    assert (code, "note: skipped 2 blank lines of blank.txt" in err) == (0, True)
    code, _, err = run("classify runs/labels 'The cat.' ''", capsys)
    assert (code, "text 2 is empty" in err) == (1, True)


def test_long_texts_are_noted(capsys):
    code, _, err = run(f"classify runs/labels '{'cat ' * 2000}' cat --json", capsys)
    assert code == 0
    assert "note: 1 of 2 texts exceeds" in err
    assert "the context of this model: the rest is not read" in err


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("classify runs/demo 'The cat'", 1, "classify needs an encoder with a classification head, and this is a GPT"),
        (
            "classify runs/demo 'The cat'",
            1,
            "train an encoder on examples: headway train classify --set data.path=FILE",
        ),
        ("classify runs/labels cat --threshold 2", 2, "is not between 0 and 1"),
        ("classify runs/labels cat --top 0", 2, "0 is not at least 1"),
        ("classify runs/labels --in texts.txt --column body", 2, "texts.txt has lines, not columns"),
        ("classify runs/labels --in reviews.csv --column body", 1, "no column 'body' in its first line, 'text, label'"),
        ("classify runs/labels --in texts.txt --out texts.txt", 2, "texts.txt is the input file"),
        ("classify nowhere cat", 1, "nowhere"),
        ("classify minilm-none cat", 1, "minilm-none"),
        ("generate runs/labels cat", 1, "labels texts (`headway classify` uses it)"),
    ],
)
def test_mistakes_get_an_exit_code_and_a_way_out(command, code, message, capsys):
    result, _, err = run(command, capsys)
    assert (result, message in " ".join(err.split())) == (code, True), err


def test_rows_without_text_are_left_out_with_a_note(tmp_path, capsys):
    (tmp_path / "holes.csv").write_text("text,id\nThe cat sat.,1\n,2\n  ,3\nThe dog sat.,4\n")
    code, out, err = run("classify runs/labels --in holes.csv --json", capsys)
    assert code == 0
    assert [text["id"] for text in json.loads(out)["texts"]] == ["1", "4"]
    assert "note: skipped 2 rows of holes.csv without a text" in err
