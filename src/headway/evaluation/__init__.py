"""Evaluation: perplexity and bits per byte, task scores, metrics of generated text, and invariants you can check."""
