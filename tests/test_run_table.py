"""The table of runs: columns, filters, order, and a width that fits the terminal."""

import json

import pytest

from headway.errors import InputError
from headway.run_table import RunTable, _number
from headway.tables import Column, render_table

RUNS = {
    "small": ("gpt", 2, 1e-3, 2.5, "end"),
    "deep": ("gpt", 8, 3e-4, 1.5, "end"),
    "cell": ("lstm", 2, 1e-2, 2.0, "interrupted"),
    "sweep/lr=0.01": ("gpt", 4, 1e-2, None, "failed"),
}


@pytest.fixture
def table(tmp_path):
    for name, (family, n_layers, lr, score, event) in RUNS.items():
        run = tmp_path / name
        checkpoint = run / "checkpoints" / "step-9"
        checkpoint.mkdir(parents=True)
        (checkpoint / "config.json").write_text("{}")
        scores = {} if score is None else {"selection_loss": score, "bits_per_byte": score, "perplexity": 2**score}
        (checkpoint / "training.json").write_text(json.dumps({"step": 9, "n_tokens": 900, "score": scores}))
        settings = f'[model]\nfamily = "{family}"\nn_layers = {n_layers}\n[train]\nlr = {lr}\nema = 0.0\n'
        (run / "recipe.toml").write_text(settings)
        records = [{"event": "start", "n_params": 1000 * n_layers}, {"step": 9, "loss": 3.0, "lr": 0.0, "seconds": 1.5}]
        text = "".join(json.dumps(record) + "\n" for record in [*records, {"event": event, "step": 9}])
        (run / "log.jsonl").write_text(text)
    return RunTable(tmp_path)


def names(table):
    return [row["name"] for row in table.rows(["name"])]


def test_rows_hold_what_the_runs_are(table):
    rows = {row["name"]: row for row in table.rows()}
    assert rows["cell"] | {"date": None} == {
        "name": "cell", "family": "lstm", "parameters": 2000, "steps": 9, "status": "interrupted", "tokens": 900,
        "seconds": 1.5, "score": 2.0, "metric": "bits_per_byte", "date": None,
    }  # fmt: skip
    assert rows["sweep/lr=0.01"]["status"] == "failed"


@pytest.mark.parametrize(
    ("conditions", "kept"),
    [
        (["family=gpt"], {"small", "deep", "sweep/lr=0.01"}),
        (["family!=gpt"], {"cell"}),
        (["score<2"], {"deep"}),
        (["score<=2", "n_layers=2"], {"cell"}),
        (["train.lr>=1e-3", "family=gpt"], {"small", "sweep/lr=0.01"}),
        (["name=sweep/*"], {"sweep/lr=0.01"}),
        (["perplexity > 3"], {"small", "cell"}),
        (["loss=3.0", "status=finished"], {"small", "deep"}),
    ],
)
def test_filters(table, conditions, kept):
    table.filter(conditions)
    assert set(names(table)) == kept


def test_sorting_puts_the_best_score_first_and_runs_without_one_last(table):
    table.sort("score")
    assert names(table) == ["deep", "cell", "small", "sweep/lr=0.01"]
    table.sort("lr", reverse=True)  # the setting, not the rate of the last step
    assert names(table)[2:] == ["small", "deep"]


def test_unknown_columns_and_conditions_are_refused(table):
    with pytest.raises(InputError, match=r"no run here has 'n_layer'\. Did you mean 'n_layers'"):
        table.filter(["n_layer=2"])
    with pytest.raises(InputError, match="Did you mean 'status'"):
        table.rows(["statuss"])
    with pytest.raises(InputError, match="'score' is not a condition such as"):
        table.filter(["score"])


LINES = [
    '{"step": NaN, "loss": 1}',
    '{"step": 1e999, "seconds": 1e999}',
    f'{{"step": {"9" * 400}, "n_params": {"9" * 400}}}',
    "[" * 100_000,
    '{"event": "sample", "step": null, "text": null}',
    '{"event": {}, "step": true}',
    "7",
]
RECIPES = [
    "[train]\nsteps = [1, 2]",
    "[train]\nsteps = 2020-01-01",
    "[train]\nsteps = 0x" + "f" * 5000,
    "[train]\nsteps = nan",
    '[train]\nsteps = "many"',
    "train = 5",
    "x = " + "[" * 5000,
    "not TOML",
]


def test_odd_runs_do_not_break_the_list(table, tmp_path, capsys):
    from tests.cli.running import run as headway_command

    for number, recipe in enumerate(RECIPES):
        run = tmp_path / f"v{number}²"
        run.mkdir()
        (run / "recipe.toml").write_text(recipe)
        (run / "log.jsonl").write_text("\n".join(LINES))
    (tmp_path / "v0²" / "log.jsonl").unlink()
    (tmp_path / "v0²" / "log.jsonl").mkdir()
    for run in RunTable(tmp_path).runs:
        assert repr(run)
        assert run.history["step"] in ([], [9])
        assert [sample.step for sample in run.samples] in ([], [0])
        assert run.metadata["steps"] in (0, 9)
    for column in ("train.steps", "score", "name", "steps", "loss"):
        for flags in ("", "--json", "--reverse", f'--filter "{column}>0"', f"--columns name,{column} --json"):
            code, out, err = headway_command(f"runs {tmp_path} --sort {column} {flags}", capsys)
            assert (code, err) == (0, "") or "meets the conditions" in err, (column, flags, err)
            if "--json" in flags:
                assert len(json.loads(out)["runs"]) == len(RECIPES) + len(RUNS)
    code, out, _ = headway_command(f"runs {tmp_path} --columns name,train.steps --json", capsys)
    steps = {row["name"]: row["train.steps"] for row in json.loads(out)["runs"]}
    assert (steps["v0²"], steps["v1²"]) == ([1, 2], "2020-01-01")


@pytest.mark.parametrize("width", [30, 60, 80, 100])
def test_the_table_fits_the_terminal(table, width):
    lines = table.render(width=width).splitlines()
    assert len(lines) == 5
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("name")
    assert "status" in lines[0]
    assert "0.01" in table.render(["name", "train.lr"], width=width)


def test_wide_columns_are_shortened_before_narrow_ones_are_left_out():
    columns = [
        Column("name", ["a/long/path/to/a/run/by/name"], is_text=True, keeps_end=True),
        Column("score", ["1.5"], rank=1),
    ]
    assert render_table(columns, width=25).splitlines() == ["name                score", "…/to/a/run/by/name    1.5"]
    assert "score" not in render_table(columns, width=18)


@pytest.mark.parametrize(
    ("text", "number"), [("1,500", 1500), ("100k", 1e5), ("2.5M", 2.5e6), ("90%", 0.9), ("1e-3", 1e-3)]
)
def test_numbers_are_read_as_the_table_writes_them(text, number):
    assert _number(text) == pytest.approx(number)
    assert _number("abc") is None
