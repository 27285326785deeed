"""How good a model is: perplexity and bits per byte, task scores, metrics, and invariants you can check."""
