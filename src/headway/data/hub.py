"""Datasets of the Hugging Face hub: `hub:owner/name`, `hub:owner/name@revision`, `hub:owner/name:data/train-*.parquet`.

`huggingface_hub` downloads the data files into its own cache, and they are read like local files. Nothing is downloaded
unless a source starts with `hub:`, and no code of a repository is ever executed.
"""

import os
import re
from pathlib import Path

from headway.data.readers import ENDINGS
from headway.errors import DataError, install_command

PREFIX = "hub:"


def fetch(source: str) -> Path:
    """Download a dataset, or find it in the cache; returns its local folder, or a glob in it."""
    match = re.fullmatch(r"hub:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?(?::(.+))?", source)
    if match is None:
        raise DataError(
            f"{source!r} is not of the form hub:owner/name, hub:owner/name@revision or hub:owner/name:FILES"
        )
    name, revision, files = match.groups()
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
    except ImportError:
        raise DataError(f"{source}: the hub needs huggingface_hub: {install_command('hub')}") from None
    patterns = [files] if files else [f"*{ending}{gz}" for ending in ENDINGS for gz in ("", ".gz")]
    try:
        folder = snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns=patterns)
    except RepositoryNotFoundError:
        raise DataError(
            f"{source}: the hub has no dataset {name!r}, or it is private; sign in with `hf auth login`"
        ) from None
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise DataError(
            f"{source} could not be downloaded: {str(error).splitlines()[0]}; datasets in the cache also work offline"
        ) from None
    return Path(folder) / files if files else Path(folder)
