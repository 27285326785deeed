"""headway fill"""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import BatchSize, Json, LoadFlags, ModelPath, check_minimum, with_option_groups
from headway.cli.prediction_files import Texts, TextTableFlags, output_records
from headway.cli.progress import CountDisplay

if TYPE_CHECKING:
    from headway.prediction.fill import FilledMask

BAR_WIDTH = 30  # characters of a probability of 1


@with_option_groups
def fill(
    model: ModelPath,
    texts: Texts = None,
    *,
    top: Annotated[int, typer.Option("-k", "--top", help="Tokens to show for each mask.")] = 5,
    files: TextTableFlags,
    loading: LoadFlags,
    batch_size: BatchSize = 32,
    json: Json = False,
) -> None:
    """Fill the masks of texts: predict the tokens behind [MASK].

    For a masked language model, such as BERT. Several masks of a text are filled independently.

    \b
    Examples:
      headway fill runs/bert "The [MASK] sat on the mat."
      headway fill runs/bert "The [MASK] sat on the [MASK]." --top 3
      headway fill runs/bert "The [MASK] sat." --json
      headway fill runs/bert --in masked.txt --out filled.jsonl
    """
    for flag, number in (("--top", top), ("--batch-size", batch_size)):
        check_minimum(flag, number)
    files.check()
    records = files.read(texts, model)
    import headway
    from headway.prediction.fill import fill_texts

    loaded = headway.load(model, **loading.options)
    start = time.monotonic()
    with CountDisplay("texts", len(records)) as display:
        inputs = [record["text"] for record in records]
        by_number = dict(fill_texts(loaded, inputs, top=top, batch_size=batch_size, on_progress=display.update))
    seconds = time.monotonic() - start
    filled = [by_number[number] for number in range(len(records))]
    results = [
        {**record, "masks": [asdict(mask) for mask in masks]} for record, masks in zip(records, filled, strict=True)
    ]
    if not output_records(results, model=model, out=files.out, json=json, seconds=seconds):
        print("\n\n".join(_render(text, masks) for text, masks in zip(inputs, filled, strict=True)))


def _render(text: str, masks: "list[FilledMask]") -> str:
    """The text, and for each mask its candidates with their probabilities as bars."""
    lines = [text.strip()]
    width = max(len(candidate.token) for mask in masks for candidate in mask.candidates)
    for number, mask in enumerate(masks, 1):
        lines += [f"mask {number}"] * (len(masks) > 1)
        lines += [
            f"  {c.token:<{width}} {c.probability:>7.1%}  {'█' * round(BAR_WIDTH * c.probability)}".rstrip()
            for c in mask.candidates
        ]
    return "\n".join(lines)
