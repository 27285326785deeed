"""Points of a sweep: what the user writes, every combination, and names that are folders."""

import pytest

from headway.config.recipe_loading import parse_setting
from headway.errors import ConfigError
from headway.sweeps.points import SweepRange, format_value, grid_points, parse_grid, parse_ranges


def test_a_grid_has_the_values_that_set_would_give():
    grid = parse_grid(["train.lr=1e-3, 3e-3", "train.schedule=cosine,linear", "train.loggers=[],['wandb']"])
    assert grid == {
        "train.lr": [0.001, 0.003],
        "train.schedule": ["cosine", "linear"],
        "train.loggers": [[], ["wandb"]],
    }


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[[1,2],[3]],[]", [[[1, 2], [3]], []]),
        ('{"a.txt" = 1.0, "b.txt" = 2.0},{}', [{"a.txt": 1.0, "b.txt": 2.0}, {}]),
        ('"a,b",c', ["a,b", "c"]),
        ("it's,a,cat's", ["it's", "a", "cat's"]),
        (r'"say \"a,b\"",😀', ['say "a,b"', "😀"]),
    ],
)
def test_commas_inside_brackets_braces_and_quotes_do_not_separate(text, values):
    assert parse_grid([f"model.x={text}"]) == {"model.x": values}


VALUES = [
    "😀",
    'a "quoted" \\ text',
    "line\nbreak",
    [[1, 2], [3]],
    {"a b": {"c": [1.5]}},
    [{"x": "😀"}],
    True,
    1e-05,
    3,
]


@pytest.mark.parametrize("value", VALUES)
def test_an_override_gives_its_value_back(value):
    (point,) = grid_points({"model.x": [value]})
    (override,) = point.overrides
    assert parse_setting(override) == ("model.x", value)


def test_points_are_all_combinations_and_are_named_by_their_settings():
    points = grid_points({"train.lr": [1e-3, 3e-5], "model.n_layers": [2, 4]})
    assert [point.name for point in points] == [
        "lr=0.001,n_layers=2",
        "lr=0.001,n_layers=4",
        "lr=3e-05,n_layers=2",
        "lr=3e-05,n_layers=4",
    ]
    assert points[2].overrides == ["train.lr=3e-05", "model.n_layers=2"]


def test_names_are_unique_folders():
    points = grid_points({"data.path": ["a/b", "a-b", "a b"]})
    assert len({point.name for point in points}) == 3
    assert all("/" not in point.name and " " not in point.name for point in points)
    both = grid_points({"train.batch_size": [1], "eval.batch_size": [2]})
    assert both[0].name == "train.batch_size=1,eval.batch_size=2"  # the last parts alone would be ambiguous
    assert len(grid_points({"data.path": ["x" * 400]})[0].name) < 200


@pytest.mark.parametrize("value", [0.1, 1e-5, 1 / 3, 123456.789, 1e22])
def test_the_text_of_a_number_stands_for_that_number(value):
    assert float(format_value(value)) == value


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["train.lr"], r"--grid 'train.lr' is not of the form"),
        (["train.lr=1,,2"], "empty value"),
        (["train.lr=1", "train.lr=2"], "given twice"),
    ],
)
def test_a_grid_that_is_not_one_is_refused(texts, message):
    with pytest.raises(ConfigError, match=message):
        parse_grid(texts)


def test_a_value_listed_twice_is_refused():
    with pytest.raises(ConfigError, match=r"lr=0\.001 is listed twice"):
        grid_points({"train.lr": [1e-3, 0.001]})


def test_ranges():
    ranges = parse_ranges(["train.lr=1e-4..1e-2:log", "model.n_layers=2..8"])
    assert ranges == {"train.lr": SweepRange(1e-4, 1e-2, log=True), "model.n_layers": SweepRange(2, 8)}
    assert ranges["model.n_layers"].is_integer
    assert not ranges["train.lr"].is_integer
    for text, message in (
        ("train.lr=5", "LOW..HIGH"),
        ("train.lr=2..1", "empty"),
        ("train.lr=0..1:log", "above 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse_ranges([text])
