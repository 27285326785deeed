"""Guess from its first bytes what a file is that is not UTF-8 text, and say what to do about it."""

import codecs

SNIFF_BYTES = 4096

# First bytes → what the file is, and the way out.
SIGNATURES: tuple[tuple[bytes, str, str], ...] = (
    (b"PK\x03\x04", "a zip archive", "unzip it, and name the files in it"),
    (b"\x1f\x8b", "a gzip file", "give it a name that ends in .gz, such as {name}.gz"),
    (b"BZh", "a bzip2 file", "decompress it: bunzip2 {name}"),
    (b"\xfd7zXZ", "an xz file", "decompress it: unxz {name}"),
    (b"\x28\xb5\x2f\xfd", "a zstd file", "decompress it: unzstd {name}"),
    (b"PAR1", "a Parquet file", "give it a name that ends in .parquet"),
    (b"\x89PNG", "a PNG image", "remove it from the data"),
    (b"\xff\xd8\xff", "a JPEG image", "remove it from the data"),
    (b"GIF8", "a GIF image", "remove it from the data"),
    (b"%PDF-", "a PDF document", "extract its text: pdftotext {name}"),
    (b"\xd0\xcf\x11\xe0", "an Office document", "save it as UTF-8 text"),
    (b"SQLite format 3", "an SQLite database", "export its table as CSV"),
    (b"\x7fELF", "a program", "remove it from the data"),
)

ENCODINGS: tuple[tuple[bytes, str], ...] = (
    (codecs.BOM_UTF32_LE, "UTF-32"),  # before UTF-16, whose byte-order mark it starts with
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


def advice(head: bytes, name: str) -> str:
    """What a file that is not UTF-8 seems to be, by its first bytes, and the way out."""
    for signature, kind, way_out in SIGNATURES:
        if head.startswith(signature):
            return f"it is {kind}, not text; {way_out.format(name=name)}"
    for mark, encoding in ENCODINGS:
        if head.startswith(mark):
            return f"it starts with a {encoding} byte-order mark; {_convert(encoding, name)}"
    if encoding := _utf16_without_mark(head):
        return f"it looks like {encoding.upper()} without a byte-order mark; {_convert(encoding, name)}"
    if b"\0" in head:
        return "it looks like a binary file, not text; remove it from the data" + _replace(name)
    is_windows = any(0x80 <= byte <= 0x9F for byte in head)  # control characters in Latin-1, punctuation in Windows
    return f"convert it first, for example: {_iconv('cp1252' if is_windows else 'latin1', name)}" + _replace(name)


def _utf16_without_mark(head: bytes) -> str:
    """ "utf-16le" or "utf-16be" if that reads the bytes as printable text, mostly ASCII; else ""."""
    for encoding in ("utf-16le", "utf-16be"):
        text = head[: len(head) // 2 * 2].decode(encoding, "replace")
        n_plain = sum(letter.isascii() and (letter.isprintable() or letter.isspace()) for letter in text)
        if text and n_plain > 0.7 * len(text):
            return encoding
    return ""


def _convert(encoding: str, name: str) -> str:
    return f"convert it: {_iconv(encoding.lower(), name)}"


def _iconv(encoding: str, name: str) -> str:
    return f"iconv -f {encoding} -t utf-8" + ("" if name == "stdin" else f" {name} > converted.txt")


def _replace(name: str) -> str:
    if name == "stdin":
        return ""
    return "; for training data, data.errors=replace (headway data: --errors replace) substitutes � for each such byte"
