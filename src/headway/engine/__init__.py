"""Token ids in, token ids out, fast."""

from headway.engine.loop import Loop

__all__ = ["Loop"]
