"""Sweeps: one recipe trained with many settings, each point an ordinary run (`headway.sweep`, `headway sweep`)."""

from headway.sweeps.results import PointResult, SweepResult, read_sweep

__all__ = ["PointResult", "SweepResult", "read_sweep"]
