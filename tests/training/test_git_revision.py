"""The commit of a run is read without git: nothing that a folder configures is ever started."""

import os
import subprocess

import pytest

import headway
from headway.training.git_revision import git_revision
from tests.training.recipes import make

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git(folder, *arguments):
    settings = {"HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    names = {f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {"PATH": os.environ["PATH"], **settings, **names}
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A repository with one commit on the branch main/line."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--initial-branch=main/line")
    (folder / "text.txt").write_text("words")
    git(folder, "add", "text.txt")
    git(folder, "commit", "--message=first")
    return folder


def test_the_commit_is_that_of_git(repository):
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "deep" / "inside").mkdir(parents=True)
    assert git_revision(repository) == git_revision(repository / "deep" / "inside") == commit


def test_packed_refs_a_detached_head_and_a_worktree(repository, tmp_path):
    first = git(repository, "rev-parse", "HEAD")
    git(repository, "tag", "--annotate", "v1", "--message=one")  # packed-refs has a line for what a tag points to
    git(repository, "worktree", "add", "-b", "other", str(tmp_path / "worktree"))
    (tmp_path / "worktree" / "more.txt").write_text("more")
    git(tmp_path / "worktree", "add", "more.txt")
    git(tmp_path / "worktree", "commit", "--message=second")
    second = git(tmp_path / "worktree", "rev-parse", "HEAD")
    for _ in range(2):
        assert (git_revision(repository), git_revision(tmp_path / "worktree")) == (first, second)
        git(repository, "pack-refs", "--all")
    git(repository, "checkout", "--detach", second)
    assert git_revision(repository) == second


def test_no_configured_program_is_started(repository, monkeypatch):
    """git runs core.fsmonitor when it is asked for the state of a folder."""
    hook, trace = repository / "hook.sh", repository / "ran"
    hook.write_text(f"#!/bin/sh\ntouch {trace}\n")
    hook.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(hook))
    monkeypatch.chdir(repository)
    recipe = make(repository, train={"steps": 1}, model={"n_layers": 1, "d_model": 32})
    result = headway.train(recipe, out=repository / "run", quiet=True)
    assert headway.open_run(result.path).metadata["git"] == git_revision(repository)
    assert not trace.exists()
    git(repository, "status")
    assert trace.exists()  # the trap works


DAMAGED_HEADS = {
    "empty": b"",
    "no commit": b"ref: refs/heads/none\n",
    "other text": b"secret words\n",
    "binary": b"\xff\xfe\x00",
    "huge": b"a" * 100_000,
    "outside": b"ref: refs/../../../etc/passwd\n",
    "absolute": b"ref: /etc/passwd\n",
    "short": COMMIT[:39].encode(),
    "endless": b"ref: refs/heads/endless\n",
}


@pytest.mark.parametrize("name", DAMAGED_HEADS)
def test_a_damaged_head_gives_no_commit(name, tmp_path):
    heads = tmp_path / ".git" / "refs" / "heads"
    heads.mkdir(parents=True)
    (tmp_path / ".git" / "HEAD").write_bytes(DAMAGED_HEADS[name])
    (heads / "endless").write_bytes(b"ref: refs/heads/endless\n")
    (heads / "good").write_text(COMMIT)
    assert git_revision(tmp_path) is None
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/good\n")
    assert git_revision(tmp_path) == COMMIT


@pytest.mark.parametrize("name", ["HEAD", "packed-refs", "commondir"])
def test_a_pipe_is_not_waited_for(name, tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / ".git" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / ".git" / name)
    assert git_revision(tmp_path) is None


def test_a_file_that_names_no_repository_gives_no_commit(tmp_path):
    for text in ("gitdir: /nowhere", "gitdir:", "", "\0"):
        (tmp_path / ".git").write_text(text)
        assert git_revision(tmp_path) is None
