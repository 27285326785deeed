"""Datasets of the Hugging Face hub: `hub:owner/name`, `hub:owner/name@revision`, `hub:owner/name:data/train-*.parquet`.

Files come through `huggingface_hub`, into its own cache, and are read like any others. Nothing is fetched unless a
source says so, and nothing in a repository is ever run.
"""

import os
import re
from pathlib import Path

from headway.data.readers import ENDINGS
from headway.errors import DataError

PREFIX = "hub:"


def fetch(source: str) -> Path:
    """Fetch a dataset, or find it in the cache; the folder or glob that holds it on this machine."""
    parts = re.fullmatch(r"hub:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?(?::(.+))?", source)
    if parts is None:
        raise DataError(
            f"{source!r} is not of the form hub:owner/name, hub:owner/name@revision or hub:owner/name:FILES"
        )
    name, revision, files = parts.groups()
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
    except ImportError:
        raise DataError(f"{source}: the hub needs huggingface_hub: pip install 'headway[hub]'") from None
    wanted = [files] if files else [f"*{ending}{more}" for ending in ENDINGS for more in ("", ".gz")]
    try:
        folder = snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns=wanted)
    except RepositoryNotFoundError:
        raise DataError(
            f"{source}: the hub has no dataset {name!r}, or it is private; `hf auth login` signs in"
        ) from None
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise DataError(
            f"{source} could not be fetched: {str(error).splitlines()[0]}; what was fetched before also works offline"
        ) from None
    return Path(folder) / files if files else Path(folder)
