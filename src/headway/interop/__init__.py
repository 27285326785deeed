"""Formats that are not ours, in and out."""
