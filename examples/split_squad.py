"""Split a SQuAD file by article: the last articles by title are held out for testing, the rest are for training.

    python examples/split_squad.py dev-v1.1.json rest.json last8.json --n-test 8

Questions about one article share passages and words, so a split inside an article would be too easy.
"""

import argparse
import gzip
import json
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=Path, help="a file in SQuAD's format, .json or .json.gz")
    parser.add_argument("train", type=Path, help="new file for all articles but the last")
    parser.add_argument("test", type=Path, help="new file for the last articles by title")
    parser.add_argument("--n-test", type=int, default=8, help="articles to hold out (default: %(default)s)")
    options = parser.parse_args()
    data = options.source.read_bytes()
    document = json.loads(gzip.decompress(data) if options.source.suffix == ".gz" else data)
    articles = sorted(document["data"], key=lambda article: article["title"])
    if not 0 < options.n_test < len(articles):
        parser.error(f"--n-test {options.n_test} must be between 1 and {len(articles) - 1}, the articles less one")
    for path, kept in ((options.train, articles[: -options.n_test]), (options.test, articles[-options.n_test :])):
        path.write_text(json.dumps({**document, "data": kept}), encoding="utf-8")
        n_questions = sum(len(paragraph["qas"]) for article in kept for paragraph in article["paragraphs"])
        print(f"{path}: {len(kept)} articles, {n_questions:,} questions")


if __name__ == "__main__":
    main()
