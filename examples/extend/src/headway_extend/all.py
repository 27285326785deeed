"""Everything that this package adds to Headway: `--plugin headway_extend.all` registers all of it."""

from headway_extend import character_accuracy, decay, roman, sigmoid, top_h

__all__ = ["character_accuracy", "decay", "roman", "sigmoid", "top_h"]
