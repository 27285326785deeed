"""`hub:owner/name` sources, against a local server that speaks the hub's HTTP API."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headway.data.hub import fetch
from headway.errors import DataError

COMMIT = "a" * 40
FILES = {
    "README.md": b"# cats",
    "data/train.jsonl": b'{"text": "one cat"}\n{"text": "two cats"}\n',
    "data/more.jsonl": b'{"text": "three cats"}\n',
}


class HubServer(BaseHTTPRequestHandler):
    requests: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def answer(self, with_body: bool) -> None:
        path = self.path.split("?")[0]
        self.requests.append(path)
        if path.startswith("/api/datasets/owner/cats/revision/"):
            body = json.dumps(
                {"id": "owner/cats", "sha": COMMIT, "siblings": [{"rfilename": name} for name in FILES], "tags": []}
            ).encode()
            self.reply(200, body, with_body)
        elif path.startswith("/api/datasets/owner/cats/tree/"):
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in FILES.items()
            ]
            self.reply(200, json.dumps(entries).encode(), with_body)
        elif path.startswith("/datasets/owner/cats/resolve/"):
            name = path.split("/resolve/")[1].split("/", 1)[1]
            if name in FILES:
                self.reply(200, FILES[name], with_body)
            else:
                self.reply(404, b"", with_body, {"X-Error-Code": "EntryNotFound"})
        else:
            self.reply(404, b"{}", with_body, {"X-Error-Code": "RepoNotFound"})

    def reply(self, code: int, body: bytes, with_body: bool, extra_headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        headers = {"Content-Length": str(len(body)), "ETag": f'"{hashlib.sha1(body).hexdigest()}"'}
        for name, value in {**headers, "X-Repo-Commit": COMMIT, **(extra_headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path):
    """Environment variables that point huggingface_hub at the local server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubServer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    HubServer.requests.clear()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
    yield {**{k: v for k, v in os.environ.items() if "proxy" not in k.lower()}, **settings}
    server.shutdown()
    server.server_close()
    thread.join()


def run_data(source: str, env: dict[str, str]) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "headway", "data", source, "--json"]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def test_a_dataset_is_downloaded_and_read_like_a_folder(hub):
    process = run_data("hub:owner/cats", hub)
    assert process.returncode == 0, process.stderr
    summary = json.loads(process.stdout)
    assert summary["records"] == 3
    assert summary["samples"] == ["three cats", "one cat", "two cats"]
    assert not any("README" in path for path in HubServer.requests)  # only data files are downloaded


def test_selected_files_are_cached_for_offline_use(hub):
    process = run_data("hub:owner/cats@main:data/train.jsonl", hub)
    assert json.loads(process.stdout)["records"] == 2, process.stderr
    offline = run_data("hub:owner/cats@main:data/train.jsonl", {**hub, "HF_HUB_OFFLINE": "1"})
    assert json.loads(offline.stdout)["records"] == 2, offline.stderr


def test_missing_datasets_and_servers_are_named(hub):
    process = run_data("hub:owner/dogs", hub)
    assert process.returncode == 1
    assert "the hub has no dataset 'owner/dogs'" in process.stderr
    assert "Traceback" not in process.stderr
    unreachable = run_data("hub:owner/cats", {**hub, "HF_ENDPOINT": "http://127.0.0.1:9"})
    assert unreachable.returncode == 1
    assert "could not be downloaded" in unreachable.stderr
    assert "Traceback" not in unreachable.stderr


def test_malformed_names_are_refused():
    with pytest.raises(DataError, match="not of the form hub:owner/name"):
        fetch("hub:cats")


def test_a_missing_huggingface_hub_is_named_with_the_way_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DataError, match=r"pip install .*\[hub\]'"):
        fetch("hub:owner/cats")
