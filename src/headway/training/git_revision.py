"""The git commit of the working directory, read from the files of the repository.

git runs programs that the folder's `.git/config` names, such as `core.fsmonitor`, and an untrusted folder must not
start anything. So this module reads `HEAD` and the refs itself, and never `config`. It does not tell whether files have
changed since the commit: comparing them takes git.
"""

import re
from pathlib import Path

from headway.errors import HeadwayError
from headway.file_reading import read_bytes

MAX_REF_BYTES = 4096
MAX_PACKED_REFS_BYTES = 64 * 2**20  # about a million refs
MAX_SYMBOLIC_REFS = 5  # from ref to ref, as git follows them

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")  # SHA-1 or SHA-256
_REF = re.compile(r"refs(/(?!\.)[^/\x00-\x20\x7f~^:?*\[\\]+)+")  # no part is "..", or begins with a dot


def git_revision(folder: Path | None = None) -> str | None:
    """The commit checked out in a folder (default: the working directory) or above it; None outside a repository, and
    in one that is damaged or whose refs are not files."""
    folder = (folder or Path.cwd()).absolute()
    try:
        for parent in (folder, *folder.parents):
            if (parent / ".git").exists():
                return _read_head(_git_dir(parent / ".git"))
    except (OSError, ValueError, HeadwayError):
        pass
    return None


def _git_dir(path: Path) -> Path:
    """`.git` itself, or the folder that it names: in a worktree or a submodule it is a file."""
    if path.is_dir():
        return path
    return path.parent / _read_line(path).removeprefix("gitdir:").strip()


def _read_head(git_dir: Path) -> str | None:
    """Follow HEAD to a commit. A worktree has a HEAD of its own, and shares the branches in `commondir`."""
    shared = git_dir
    if (git_dir / "commondir").exists():
        shared = git_dir / _read_line(git_dir / "commondir")
    value: str | None = _read_line(git_dir / "HEAD")
    for _ in range(MAX_SYMBOLIC_REFS):
        if value is None or _COMMIT.fullmatch(value):
            return value
        ref = value.removeprefix("ref:").strip()
        if not value.startswith("ref:") or not _REF.fullmatch(ref):
            return None
        value = _read_ref(ref, git_dir, shared)
    return None


def _read_ref(ref: str, git_dir: Path, shared: Path) -> str | None:
    """A ref is a file of its own, or a line of `packed-refs`; None before the first commit of a branch."""
    for folder in (git_dir, shared):
        if (folder / ref).is_file():
            return _read_line(folder / ref)
    if not (shared / "packed-refs").exists():
        return None
    for line in _read_text(shared / "packed-refs", MAX_PACKED_REFS_BYTES).splitlines():
        commit, _, name = line.partition(" ")
        if name == ref:
            return commit
    return None


def _read_line(path: Path) -> str:
    return _read_text(path, MAX_REF_BYTES).strip()


def _read_text(path: Path, max_bytes: int) -> str:
    return read_bytes(path, max_bytes=max_bytes).decode("utf-8")
