"""headway generate --in FILE --out FILE.jsonl: one JSON object per prompt, written line by line, and resumed."""

import json
import os

import pytest

import headway
from headway.cli.prompt_files import JsonLinesFile
from tests.cli.running import run

PROMPTS = ["The", "The cat", "The cat sat on", "A", ""]
COMMAND = "generate runs/demo --in p.txt --out out.jsonl --max-new-tokens 3 --seed 5 -n 2 --batch-size 1"


@pytest.fixture(autouse=True)
def folder(workspace, tmp_path, monkeypatch):
    os.symlink(workspace / "runs", tmp_path / "runs")
    (tmp_path / "p.txt").write_text("\n".join(PROMPTS) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(file):
    assert file.read_text().endswith("\n")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_one_object_per_prompt_in_order(folder, capsys):
    code, out, err = run(COMMAND, capsys)
    assert (code, out) == (0, ""), err
    assert "5 prompts in" in err
    lines = read(folder / "out.jsonl")
    assert [line["prompt"] for line in lines] == PROMPTS
    assert {json.dumps(line["settings"]) for line in lines} == {'{"model": "runs/demo", "max_new_tokens": 3}'}
    assert [[text["seed"] for text in line["texts"]] for line in lines] == [[5, 6], [7, 8], [9, 10], [11, 12], [13, 14]]
    assert all(text["finish_reason"] in ("length", "stop") for line in lines for text in line["texts"])
    single = json.loads(run('generate runs/demo "The cat" --max-new-tokens 3 --seed 7 -n 2 --json', capsys)[1])
    assert [text["text"] for text in lines[1]["texts"]] == [text["text"] for text in single["texts"]]


def test_a_killed_job_is_resumed_and_gives_the_same_file(folder, capsys, monkeypatch):
    monkeypatch.setattr("headway.cli.generation_run.BATCHES_PER_WRITE", 4)  # two prompts at a time
    assert run(COMMAND, capsys)[0] == 0
    whole = (folder / "out.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    (folder / "out.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:20])  # killed within a write
    generated = []
    monkeypatch.setattr(headway.generation.generate, "generate", count_rows(generated))
    code, _, err = run(f"{COMMAND.replace('--seed 5', '')} --resume", capsys)
    assert code == 0, err
    assert (folder / "out.jsonl").read_bytes() == whole
    assert generated == [4, 2]  # prompts 3 and 4, then 5; each has two texts
    assert "2 prompts in" in err


@pytest.mark.parametrize("n_bytes", [0, 5, 30])
def test_a_job_killed_in_its_first_line_is_resumed(n_bytes, folder, capsys):
    assert run(COMMAND, capsys)[0] == 0
    whole = (folder / "out.jsonl").read_bytes()
    (folder / "out.jsonl").write_bytes(whole[:n_bytes])
    assert run(f"{COMMAND} --resume", capsys)[0] == 0
    assert (folder / "out.jsonl").read_bytes() == whole


FOREIGN = {
    "a text": "my notes, one line without an end",
    "a text of lines": "my notes\nsecond line",
    "other JSON lines": '{"prompt": "The", "completion": "x"}\n{"prom',
    "an object without an end": '{"text": "The',
    "the prompts of another job": '{"prompt": "Another',
    "a number of texts": '{"prompt": "The", "texts": 5}\n{"prom',
    "texts as strings": '{"prompt": "The", "texts": ["a"]}\n',
    "a seed as text": '{"prompt": "The", "texts": [{"seed": "x"}]}\n',
    "settings as text": '{"prompt": "The", "settings": "x", "texts": []}\n',
    "brackets": "[" * 100_000 + "\n",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_resume_never_changes_a_file_that_generate_did_not_write(name, folder, capsys):
    (folder / "out.jsonl").write_text(FOREIGN[name])
    code, out, err = run(f"{COMMAND} --resume", capsys)
    assert (code, out) == (2, "")
    assert "was not written by `headway generate --out`" in " ".join(err.split())
    assert (folder / "out.jsonl").read_text() == FOREIGN[name]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--temperature 0.5", "started with temperature the default, not 0.5"),
        ("--greedy", "started with temperature the default, not 0.0"),
        ("--max-new-tokens 4", "started with max_new_tokens 3, not 4"),
        ("--set top_k=3", "started with top_k the default, not 3"),
        ("--stop x", 'started with stop the default, not ["x"]'),
        ("-n 3", "started with seed 5 and 2 texts per prompt"),
        ("--seed 6", "started with seed 5"),
    ],
)
def test_resume_refuses_other_settings(flags, message, folder, capsys):
    assert run(COMMAND, capsys)[0] == 0
    lines = (folder / "out.jsonl").read_text().splitlines(keepends=True)
    (folder / "out.jsonl").write_text("".join(lines[:3]))
    code, _, err = run(f"{COMMAND} --resume {flags}", capsys)
    assert (code, message in " ".join(err.split())) == (2, True), err
    assert (folder / "out.jsonl").read_text() == "".join(lines[:3])


def test_an_output_file_can_be_the_input_of_another_call(folder, capsys):
    assert run(COMMAND, capsys)[0] == 0
    again = COMMAND.replace("p.txt", "out.jsonl").replace("--out out.jsonl", "--out again.jsonl")
    assert run(again, capsys)[0] == 0
    assert (folder / "again.jsonl").read_bytes() == (folder / "out.jsonl").read_bytes()


def count_rows(counts):
    generate = headway.generation.generate.generate

    def counting(model, prompts, **options):
        counts.append(len(prompts))
        return generate(model, prompts, **options)

    return counting


def test_json_lines_keep_their_fields(folder, capsys):
    (folder / "p.jsonl").write_text('{"prompt": "The", "id": "a"}\n\n{"prompt": "A\u2028cat"}\n')
    command = "generate runs/demo --in p.jsonl --out out.jsonl --num-beams 2 --n-best 2 --max-new-tokens 3"
    assert run(command, capsys)[0] == 0
    first, second = [json.loads(line) for line in (folder / "out.jsonl").read_text().split("\n")[:-1]]
    assert (first["id"], second["prompt"]) == ("a", "A\u2028cat")
    assert [text["rank"] for text in first["texts"]] == [1, 2]
    assert run(f"{command} --resume", capsys)[0] == 0  # nothing is left to do


def test_a_full_disk_leaves_whole_lines(folder):
    with JsonLinesFile(folder / "f.jsonl") as file:
        file.write({"a": 1})
        written, file._file = file._file, HalfWriter(file._file)
        with pytest.raises(OSError, match="No space left"):
            file.write({"b": 2})
        file._file = written
    assert (folder / "f.jsonl").read_text() == '{"a": 1}\n'


class HalfWriter:
    """A file on a disk that is nearly full."""

    def __init__(self, file):
        self.file, self.name, self.fileno, self.truncate = file, file.name, file.fileno, file.truncate

    def write(self, data):
        return self.file.write(data[:3])


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        ("--in p.txt --out p.txt", 2, "p.txt does not end in .jsonl"),
        ("--in bad.jsonl --out ./bad.jsonl --overwrite", 2, "holds the prompts: name another file"),
        ("--in p.txt --out old.jsonl", 1, "old.jsonl already exists: name another file, or add --resume"),
        ("--in p.txt --out old.jsonl --resume", 2, "old.jsonl, line 1 continues 'other', but prompt 1 is 'The'"),
        ("--in p.txt --out other.jsonl --resume", 2, "other.jsonl was not written by `headway generate --out`"),
        ("--in p.txt --resume", 2, "add --out FILE.jsonl"),
        ("--in p.txt --out x.jsonl --resume --overwrite", 2, "choose one"),
        ("--in p.txt --out x.jsonl --stream", 2, "leave one out"),
        ("--in p.txt --out nowhere/x.jsonl", 2, "the folder nowhere of x.jsonl does not exist"),
        ("--in bad.jsonl --out x.jsonl", 1, 'bad.jsonl, line 2 is not an object with a text: {"prompt": "…"}'),
        ("The --in p.txt", 2, "cannot be combined with a prompt"),
    ],
)
def test_mistakes_get_an_exit_code_and_a_way_out(flags, code, message, folder, capsys):
    (folder / "old.jsonl").write_text('{"prompt": "other", "texts": []}\n')
    (folder / "other.jsonl").write_text('{"text": "other"}\n')
    (folder / "bad.jsonl").write_text('{"prompt": "a"}\n{"text": "b"}\n')
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    result, out, err = run(f"generate runs/demo {flags}", capsys)
    assert (result, out, message in " ".join(err.split())) == (code, "", True), err
    assert {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} == before
