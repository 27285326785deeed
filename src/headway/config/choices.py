"""Settings that name something you can add to: an optimizer, an objective, a tokenizer, …

`headway.register` adds a name to `CHOICES`, and every setting declared with `one_of` accepts it from then on:

    optimizer: Annotated[str, one_of("optimizer"), about("…")] = "adamw"
"""

from msgspec import Meta

CHOICES: dict[str, list[str]] = {
    "attention": ["dot-product"],
    "tokenizer": ["char", "word", "bpe", "wordpiece", "unigram"],
    "reader": ["auto", "text", "jsonl", "csv", "tsv", "parquet", "conll", "squad", "lines", "misspellings"],
    "objective": ["auto", "causal", "masked", "pairs", "classify", "tag", "span"],
    "optimizer": ["adamw", "adam", "sgd", "muon"],
    "metric": [
        *("loss", "accuracy", "macro_f1", "micro_f1", "f1", "exact_match"),  # of predictions
        *("bleu", "rouge1", "rouge2", "rougeL", "gleu"),  # of generated text
    ],
}

# A registered objective is a training loss on the batches of a built-in objective: its name → that objective.
BASE_OBJECTIVES: dict[str, str] = {}


def one_of(kind: str) -> Meta:
    """The value is a name in `CHOICES[kind]`."""
    return Meta(extra={"choices": kind})
