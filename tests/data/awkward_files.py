"""Fifty files as they lie around in real folders, and what Headway says of each."""

import gzip
import json
import os
from pathlib import Path

TEXT = "The cat sat on the mat.\nThe dog did not.\n"

# name → content, and a part of the message; "": the file is fine.
FILES: dict[str, tuple[bytes, str]] = {
    # fine as they are
    "plain.txt": (TEXT.encode(), ""),
    "crlf.txt": (TEXT.replace("\n", "\r\n").encode(), ""),
    "returns.txt": (TEXT.replace("\n", "\r").encode(), ""),
    "mark.txt": (TEXT.encode("utf-8-sig"), ""),
    "no-newline.txt": (b"one line", ""),
    "huge-line.txt": (b"word " * 200_000, ""),
    "emoji.txt": ("Grüße 😀 日本".encode(), ""),
    "UPPER.TXT": (TEXT.encode(), ""),
    "two words.txt": (TEXT.encode(), ""),
    "good.txt.gz": (gzip.compress(TEXT.encode()), ""),
    # other encodings
    "utf16le.txt": (TEXT.encode("utf-16"), "UTF-16 byte-order mark; convert it: iconv -f utf-16"),
    "utf16be.txt": (b"\xfe\xff" + TEXT.encode("utf-16-be"), "UTF-16 byte-order mark"),
    "utf16-no-mark.txt": (TEXT.encode("utf-16-le"), "looks like UTF-16LE without a byte-order mark"),
    "utf16be-no-mark.txt": (TEXT.encode("utf-16-be"), "iconv -f utf-16be"),
    "utf32.txt": (TEXT.encode("utf-32"), "UTF-32 byte-order mark"),
    "latin1.txt": ("Grüße".encode("latin1"), "iconv -f latin1"),
    "cp1252.txt": (b"it\x92s", "byte 0x92 at offset 2"),
    "bad-utf8.txt": (TEXT.encode() + b"\xff\xfe" + TEXT.encode(), "byte 0xff at offset 41"),
    "surrogate.txt": (b"a\xed\xa0\x80b", "byte 0xed at offset 1"),
    "cut-character.txt": ("é".encode()[:1], "byte 0xc3 at offset 0"),
    # not text
    "nul.txt": (b"some text\0 and more text", "has a NUL byte at offset 9"),
    "zeros.txt": (b"\0" * 5000, "looks like a binary file"),
    "picture.txt": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a PNG image"),
    "photo.txt": (b"\xff\xd8\xff\xe0\0\x10JFIF", "a JPEG image"),
    "archive.txt": (b"PK\x03\x04\x14\0\0\0\x08\0\xff\xff", "a zip archive, not text; unzip it"),
    "forgot-gz.txt": (gzip.compress(TEXT.encode()), "a gzip file, not text; give it a name that ends in .gz"),
    "paper.txt": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3", "a PDF document"),
    "table.txt": (b"PAR1\x15\x04\x15\xff", "a Parquet file"),
    # empty
    "empty.txt": (b"", "is empty: it holds no text"),
    "blank.txt": (b" \n\t\r\n", "is empty: it holds no text"),
    "only-mark.txt": (b"\xef\xbb\xbf", "is empty: it holds no text"),
    "empty.txt.gz": (gzip.compress(b""), "is empty: it holds no text"),
    # damaged
    "truncated.txt.gz": (gzip.compress(TEXT.encode() * 99)[:-20], "is damaged"),
    "flipped.txt.gz": (gzip.compress(TEXT.encode())[:-8] + bytes(8), "is damaged or not a gzip file: CRC"),
    "plain.txt.gz": (TEXT.encode(), "not a gzip file"),
    "nothing.txt.gz": (b"", "is empty: it holds no text"),
    # tables
    "unclosed.csv": (b'text\n"never closed\nmore\n', "line 2 is not CSV: the quote that opens a field is never closed"),
    "stray-quote.csv": (b'text,n\n"a"b,1\n', "follows a closing quote"),
    "ragged.csv": (b"text,n\na,1\nb\n", "line 3 has 1 columns, but the first row has 2"),
    "returns.csv": (b"text,n\ra,1\rb,2\r", "line 1 is not CSV: it has a carriage return"),
    "twice.csv": (b"text,text\na,b\n", "2 columns are called 'text'"),
    "no-column.csv": (b"one,two\na,b\n", "which column is the text?"),
    "header.csv": (b"", "is empty: it has no rows"),
    "broken.jsonl": (b'{"text": "a"}\n{"text": \n', "line 2 is not JSON"),
    "half-character.jsonl": (b'{"text": "a"}\n{"text": "\\ud800"}\n', "line 2 is not JSON"),
    "deep.jsonl": (b'{"text": ' + b"[" * 100_000 + b"\n", "line 1 is not JSON: the JSON is nested too deeply"),
    "null.jsonl": (b'{"text": null}\n', "line 1: column 'text' is null"),
    "squad.json": (json.dumps({"data": [{"paragraphs": None}]}).encode(), "is not in SQuAD format"),
    "bad.parquet": (b"PAR1 nonsense", "is damaged or not a Parquet file"),
    "untagged.conll": (b"word\n", "is a word without a tag"),
}


def make(folder: Path, endings: tuple[str, ...] = ("",)) -> dict[str, str]:
    """Write the files whose name ends so, and some things that are no files; returns the messages by name."""
    expected = {}
    for name, (content, message) in FILES.items():
        if name.lower().endswith(endings):
            (folder / name).write_bytes(content)
            if message:
                expected[name] = message
    os.mkfifo(folder / "pipe.txt")
    (folder / "link.txt").symlink_to("nowhere")
    (folder / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    (folder / "thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0")
    return expected | {"pipe.txt": "is a pipe, not a file", "link.txt": "is a broken link to nowhere"}
