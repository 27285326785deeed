"""Exercises of the lectures."""
