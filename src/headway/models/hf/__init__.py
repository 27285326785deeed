"""Directory layouts of Hugging Face transformers, one file per architecture."""
