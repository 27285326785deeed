"""Find data files in folders and by globs, each file once however many links lead to it."""

import fnmatch
import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from headway.errors import DataError


def expand_user(path: str) -> Path:
    """Replace ~ by the home folder. Refuses a NUL, an unknown user, and a path that is not UTF-8."""
    if "\0" in path:
        raise DataError(f"the path {path!r} holds a NUL character, which no file name has; remove it")
    try:
        expanded = Path(path).expanduser()
    except RuntimeError:
        raise DataError(f"{path}: there is no home folder of {path.split('/')[0]!r}; write the full path") from None
    try:
        os.path.abspath(expanded).encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"the path {str(expanded)!r} is not UTF-8, so a recipe cannot hold it; rename it") from None
    return expanded


def visible_files(folder: Path) -> Iterator[Path]:
    """All files below a folder except hidden ones; an unreadable subfolder is an error, not skipped. Links to folders
    are not followed."""

    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}; change its permissions, or move it away")

    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(parent) / name for name in names if not name.startswith("."))


def glob_files(pattern: str) -> Iterator[Path]:
    """All that match a glob, except folders. `**` is any number of folders; links to folders are followed, but not in
    circles."""
    parts = Path(pattern).parts
    if "**" not in parts:
        yield from (Path(name) for name in glob.iglob(pattern) if not os.path.isdir(name))
        return
    first = parts.index("**")
    for base in glob.glob(os.path.join(*parts[:first])) if first else ["."]:
        for relative in _walk(Path(base), has_hidden=any(part.startswith(".") for part in parts[first:])):
            if _matches(relative.parts, parts[first:]):
                yield Path(base) / relative


def _walk(base: Path, *, has_hidden: bool) -> Iterator[Path]:
    """The files below a folder, as paths relative to `base`. Each link to a folder is followed once, so that links in
    circles come to an end."""
    followed: set[tuple[int, int]] = set()
    folders, links = [Path()], list[Path]()
    while folders or links:
        relative = folders.pop() if folders else links.pop(0)
        try:
            entries = sorted(os.scandir(base / relative), key=lambda entry: entry.name)
        except OSError:
            continue  # as glob does
        for entry in entries:
            if not os.path.isdir(entry.path):
                yield relative / entry.name
            elif not has_hidden and entry.name.startswith("."):
                continue
            elif not entry.is_symlink():
                folders.append(relative / entry.name)
            elif (link := (os.lstat(entry.path).st_dev, entry.inode())) not in followed:
                followed.add(link)
                links.append(relative / entry.name)


def _matches(names: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether the parts of a path match those of a glob; wildcards do not match hidden names."""
    if not pattern or not names:
        return not names and all(part == "**" for part in pattern)
    if pattern[0] == "**":
        if _matches(names, pattern[1:]):
            return True
        return not names[0].startswith(".") and (_matches(names[1:], pattern))
    is_hidden = names[0].startswith(".") and not pattern[0].startswith(".")
    return not is_hidden and fnmatch.fnmatchcase(names[0], pattern[0]) and _matches(names[1:], pattern[1:])


def unique_files(files: Iterable[Path]) -> list[Path]:
    """The files sorted by name, without those that are the same file on disk as an earlier one."""
    by_identity: dict[tuple[int, int] | Path, Path] = {}
    for file in sorted(files):
        try:
            status = file.stat()
        except OSError:  # a broken link: an error when it is read
            by_identity[file] = file
        else:
            by_identity.setdefault((status.st_dev, status.st_ino), file)
    return list(by_identity.values())
