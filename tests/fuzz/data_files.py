"""Data files of every format: what is intact is read as a naive reader reads it, what is damaged is read or refused."""

import csv
import gzip
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.data.records import Answer, LabelledText, Pair, Question, Record, TaggedSentence, is_empty, texts_of
from headway.data.sources import DataSource, open_source
from headway.data.splits import SPLIT_NAMES, SplitFractions, scan, split_records
from headway.data.statistics import summarize
from headway.errors import HeadwayError
from headway.tokenizers import Tokenizer, train
from tests.fuzz.harness import Area
from tests.fuzz.mutations import mutate_bytes, mutate_json, remove, replace_file

LETTERS = "abc é’日😀,;\"'\\:|{}[]_-0123456789\u2028\u00a0\x1c"


def random_text(rng: random.Random, extra: str = "") -> str:
    return "".join(rng.choices(LETTERS + extra, k=rng.choice([1, 3, 10, 40, 200])))


# ── intact files, and what a naive reader makes of them ───────────────────────────────────────────────────────────

Intact = tuple[str, bytes, dict[str, Any], list[Record]]  # file name, content, options, expected records


def text_file(rng: random.Random) -> Intact:
    text = "".join(random_text(rng, "\r\n\t") for _ in range(rng.randrange(1, 30)))
    return "a.txt", text.encode(), {}, [text]


def separated_file(rng: random.Random) -> Intact:
    documents = [random_text(rng, "\n").replace("|", "/") for _ in range(rng.randrange(1, 30))]
    return "a.txt", "|".join(documents).encode(), {"separator": "|"}, list(documents)


def lines_file(rng: random.Random) -> Intact:
    lines = [random_text(rng, "\t\r") for _ in range(rng.randrange(1, 60))]
    return "a.txt", "\n".join(lines).encode(), {"format": "lines"}, list(lines)


def csv_file(rng: random.Random) -> Intact:
    delimiter, quoting = rng.choice(",;"), rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    extra = "\r\n\t" if quoting == csv.QUOTE_ALL else "\n\t"  # `csv` leaves \r without quotes
    rows = [(random_text(rng, extra), random_text(rng)) for _ in range(rng.randrange(1, 40))]
    output = io.StringIO(newline="")
    writer = csv.writer(output, delimiter=delimiter, quoting=quoting, lineterminator=rng.choice(["\n", "\r\n"]))
    writer.writerows([("text", "label"), *rows])
    data = output.getvalue().encode()
    if rng.random() < 0.5:
        return "a.csv", data, {"label": "label"}, [LabelledText(*row) for row in rows]
    return "a.csv", data, {"pairs": "text,label"}, [Pair(*row) for row in rows]


def tsv_file(rng: random.Random) -> Intact:
    rows = [(random_text(rng), random_text(rng)) for _ in range(rng.randrange(1, 40))]
    return "a.tsv", "\n".join(map("\t".join, rows)).encode(), {"pairs": "1,2"}, [Pair(*row) for row in rows]


def jsonl_file(rng: random.Random) -> Intact:
    texts = [random_text(rng, "\n\r\t\0") for _ in range(rng.randrange(1, 40))]
    lines = [json.dumps({"text": text, "n": i}, ensure_ascii=rng.random() < 0.5) for i, text in enumerate(texts)]
    return "a.jsonl", "\n".join(lines).encode(), {}, list(texts)


def conll_file(rng: random.Random) -> Intact:
    sentences = []
    for _ in range(rng.randrange(1, 20)):
        words = [f"w{rng.randrange(100)}{rng.choice('aé日')}" for _ in range(rng.randrange(1, 9))]
        sentences.append(TaggedSentence(tuple(words), tuple(rng.choice(["O", "B-X"]) for _ in words)))
    blocks = ["\n".join(map("\t".join, zip(s.words, s.tags, strict=True))) for s in sentences]
    return "a.conll", "\n\n".join(blocks).encode(), {}, list(sentences)


def squad_document(rng: random.Random) -> tuple[dict[str, Any], list[Record]]:
    records: list[Record] = []
    paragraphs = []
    for _ in range(rng.randrange(1, 5)):
        context, questions = random_text(rng, "\n") + "x", []
        for _ in range(rng.randrange(1, 4)):
            start = rng.randrange(len(context))
            answer = {"text": context[start : start + 5], "answer_start": start}
            question = {"id": f"q{len(records)}", "question": random_text(rng), "answers": rng.choice([[], [answer]])}
            answers = tuple(Answer(a["text"], a["answer_start"]) for a in question["answers"])
            records.append(Question(question["id"], question["question"], context, answers))
            questions.append(question)
        paragraphs.append({"context": context, "qas": questions})
    return {"data": [{"paragraphs": paragraphs}]}, records


def squad_file(rng: random.Random) -> Intact:
    document, records = squad_document(rng)
    return "a.json", json.dumps(document).encode(), {}, records


MAKERS: list[Callable[[random.Random], Intact]] = [
    text_file,
    separated_file,
    lines_file,
    csv_file,
    tsv_file,
    jsonl_file,
    conll_file,
    squad_file,
]


class DataFiles(Area):
    name = "data_files"
    full_count = 4_000
    ci_count = 100

    def prepare(self) -> None:
        self.tokenizer: Tokenizer = train("char", [LETTERS])

    def case(self, rng: random.Random) -> str:
        name, data, options, expected = rng.choice(MAKERS)(rng)
        is_damaged = rng.random() < 0.6
        if is_damaged:
            data = self.damaged(name, data, rng)
        if rng.random() < 0.2:
            name, data = f"{name}.gz", gzip.compress(data)
            if is_damaged and rng.random() < 0.5:
                data = mutate_bytes(data, rng)
        if is_damaged and rng.random() < 0.2:
            options |= rng.choice([{"errors": "replace"}, {"text": "2"}, {"label": "1"}, {"pairs": "2,1"}])
        file = self.folder / name
        file.write_bytes(data)
        try:
            if is_damaged and rng.random() < 0.1:
                replace_file(file, rng)
                options.pop("errors", None)  # gigabytes of NUL bytes would be replaced one by one
            return self.read(file, options, None if is_damaged else expected, rng)
        finally:
            remove(file)

    def damaged(self, name: str, data: bytes, rng: random.Random) -> bytes:
        if name == "a.json" and rng.random() < 0.5:
            return json.dumps(mutate_json(squad_document(rng)[0], rng)).encode()
        if name == "a.jsonl" and rng.random() < 0.3:
            lines = data.split(b"\n")
            lines[rng.randrange(len(lines))] = rng.choice([b'{"text": ' + b"[" * 10**5, b'{"text": "\\ud800"}', b"[]"])
            return b"\n".join(lines)
        if rng.random() < 0.1:
            return data.decode(errors="replace").encode(rng.choice(["utf-16", "utf-16-le", "utf-32", "utf-8-sig"]))
        return mutate_bytes(data, rng)

    def read(self, file: Path, options: dict[str, Any], expected: list[Record] | None, rng: random.Random) -> str:
        source = open_source(str(file), **options)
        try:
            records = list(source.records())
        except HeadwayError as error:
            if expected is not None and any(not is_empty(record) for record in expected):
                self.fail(f"an intact {file.name} with {options} was refused: {error}")
            if file.name not in str(error):
                self.fail(f"the error does not name the file: {error}")
            raise
        if expected is not None:
            keep_empty = options.get("format") == "lines"
            expected = [record for record in expected if keep_empty or not is_empty(record)]
            if records != expected:
                self.fail(f"{file.name} with {options} gives {records!r:.300}, not {expected!r:.300}")
        self.check_reading(source, records, rng)
        return "as the naive reader" if expected is not None else "read"

    def check_reading(self, source: DataSource, records: list[Record], rng: random.Random) -> None:
        """What holds for any source that can be read."""
        for text in (text for record in records for text in texts_of(record)):
            text.encode()  # no lone surrogates
        if list(source.records()) != records:
            self.fail("a second pass gives other records")
        test = rng.choice([0.0, 0.1])
        fractions = SplitFractions(rng.choice([0.1, 0.3]), test, rng.choice(["auto", "hash", "tail"]))
        n_bytes = sum(len(text.encode()) for record in records for text in texts_of(record))
        counts = scan([records], fractions)
        if (counts.n_records, counts.n_bytes) != (len(records), n_bytes):
            self.fail(f"a scan counts {counts.n_records} records of {counts.n_bytes} bytes")
        summary = summarize(source, self.tokenizer, fractions)
        if (summary.records, summary.bytes) != (len(records), n_bytes):
            self.fail(f"the summary has {summary.records} records of {summary.bytes} bytes")
        if summary.split and sum(sizes["bytes"] for sizes in summary.split.values()) != n_bytes:
            self.fail(f"the splits of the summary lose text: {summary.split}")
        splits = {name: list(split_records(source, fractions, name)) for name in SPLIT_NAMES}
        self.check_splits(records, splits)

    def check_splits(self, records: list[Record], splits: dict[Any, list[Record]]) -> None:
        """Nothing is lost, and nothing is twice: the splits together are the records, or are the text cut in three."""
        parts = [record for name in ("train", "test", "valid") for record in splits[name]]
        if sorted(map(repr, parts)) == sorted(map(repr, records)):
            return
        if "".join(map(str, parts)) != "".join(map(str, records)):
            self.fail("the splits together are not the text")
