"""One error that names every faulty file of a source, so that all can be repaired at once."""

from collections.abc import Iterator
from pathlib import Path

from headway.data.readers import ReadOptions, format_of, read_batches
from headway.data.records import Record, is_empty
from headway.errors import DataError, HeadwayError, count

MAX_NAMED_FILES = 100
MAX_CHECKED_BYTES = 1 << 30  # on disk; later files are not checked for faults


def read_files(
    name: str, files: list[Path], format: str, options: ReadOptions, empty_files: list[Path], left_out: list[Path]
) -> Iterator[list[Record]]:
    """The records of files in batches. If a file is faulty, the error names all faulty ones. Files without text are
    added to `empty_files`; `left_out` are other files of the folder, which are not read."""
    empty_files.clear()
    for file in files:
        try:
            has_text = False
            for batch in read_batches(file, format, options):
                has_text = has_text or not all(map(is_empty, batch))
                yield batch
            if not has_text:
                empty_files.append(file)
        except DataError:
            if len(files) == 1:
                raise
            raise faults_error(name, files, options, format, left_out=left_out) from None


def faults_error(
    name: str,
    files: list[Path],
    options: ReadOptions,
    format: str | None = None,
    *,
    reason: str = "",
    left_out: list[Path],
) -> DataError:
    """The error that lists every faulty file of a source and its fault, after the `reason` if the source itself is
    refused. `format` applies to all files; by default each file has its own."""
    faults, n_unchecked = _find_faults(files, options, format)
    lines = [reason] if reason else []
    if faults:
        lines.append(f"{name}: {len(faults):,} of {count(len(files), 'file')} cannot be used:")
        lines += [f"  {message}" for message in faults[:MAX_NAMED_FILES]]
        if len(faults) > MAX_NAMED_FILES:
            lines.append(f"  … and {len(faults) - MAX_NAMED_FILES:,} more")
    if n_unchecked:
        lines.append(f"the last {count(n_unchecked, 'file')} were not checked")
    if faults and left_out:
        lines.append(describe_left_out(left_out))
    return DataError("\n".join(lines))


def _find_faults(files: list[Path], options: ReadOptions, format: str | None) -> tuple[list[str], int]:
    """The fault of each faulty file, and the number of files at the end that were not checked (MAX_CHECKED_BYTES)."""
    faults: list[str] = []
    n_bytes = 0
    for i, file in enumerate(files):
        n_bytes += file.stat().st_size if file.is_file() else 0
        if i and n_bytes > MAX_CHECKED_BYTES:
            return faults, len(files) - i
        try:
            has_text = False
            for batch in read_batches(file, format or format_of(file), options):
                has_text = has_text or not all(map(is_empty, batch))
            if not has_text:
                faults.append(f"{file} is empty: it holds no text; delete it, or add text to it")
        except HeadwayError as error:
            faults.append(str(error))
    return faults, 0


def describe_left_out(files: list[Path]) -> str:
    """The files of a folder that are not data files by their names, and how to read them."""
    names = ", ".join(str(file) for file in files[:MAX_NAMED_FILES])
    more = f" and {len(files) - MAX_NAMED_FILES:,} more" if len(files) > MAX_NAMED_FILES else ""
    return f"not read, since their endings are not those of data files: {names}{more}; to read them, use a glob"
