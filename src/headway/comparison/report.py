"""A comparison as a table for the terminal, as Markdown, and as a plot."""

from collections.abc import Sequence
from pathlib import Path

from headway.analysis.comparison_plots import PlotLine, plot_compute, plot_lengths, plot_training
from headway.comparison.results import Comparison, ModelResult
from headway.evaluation.leakage import LEAK_WARNING

TITLES = {  # of the metrics, in the order of their columns
    "bits_per_byte": "bits per byte",
    "perplexity": "perplexity",
    "exact_match": "exact match",
    "bleu": "BLEU",
    "micro_f1": "micro-F1",
    "f1": "entity F1",
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
}
FORMATS = {"bits_per_byte": "{:.4f}", "perplexity": "{:,.2f}", "exact_match": "{:.1%}", "bleu": "{:.2f}"}
PERCENT = "{:.2%}"  # of the other metrics
TARGETS = {"text": "tokens", "pairs": "tokens", "labelled": "examples", "tagged": "words"}  # that training counts

_Row = list[str]


def render_text(comparison: Comparison) -> str:
    """All results for a terminal: the table, notes, the scores by length, the samples."""
    header, rows = _result_table(comparison)
    parts = [_summary(comparison), "", _aligned(header, rows, left=1)]
    if notes := _notes(comparison):
        parts += ["", *notes]
    if lengths := _length_table(comparison):
        parts += ["", _length_title(comparison), "", _aligned(*lengths)]
    for result in comparison.results:
        if result.sample:
            prompt, text = _split_sample(comparison, result)
            lines = "\n".join(f"    {_printable(line)}" for line in text.splitlines() if line.strip())
            parts += ["", _sample_title(result, prompt), "", lines]
    return "\n".join(parts)


def render_markdown(comparison: Comparison) -> str:
    """The same as a Markdown document."""
    parts = [_summary(comparison), _markdown_table(*_result_table(comparison), left=1), *_notes(comparison)]
    if lengths := _length_table(comparison):
        parts += [_length_title(comparison), _markdown_table(*lengths)]
    for result in comparison.results:
        if result.sample:
            prompt, text = _split_sample(comparison, result)
            quote = "\n".join(f"> {line}" for line in text.splitlines() if line.strip())
            parts += [_sample_title(result, prompt), quote]
    return "\n\n".join(parts) + "\n"


def plot(comparison: Comparison, file: str | Path) -> Path:
    """Language models: bits per byte against training FLOPs. Sequence-to-sequence: the score against source length.
    Classifiers and taggers: the score against what the budget counts, the examples or the seconds of training."""
    title = f"{comparison.data}, {comparison.budget}"
    if comparison.kind == "text":
        lines = [
            PlotLine(
                _label(result),
                [point.flops for point in result.curve] or [result.flops] * bool(result.flops),
                [point.score for point in result.curve] or [result.scores["bits_per_byte"]],
            )
            for result in comparison.results
        ]
        return plot_compute(lines, file, ylabel="bits per byte of held-out text", title=title)
    if comparison.kind in ("labelled", "tagged"):
        return _plot_training(comparison, file, title)
    is_exact_match = comparison.metric == "exact_match"
    lines = [
        PlotLine(
            _label(result),
            [(bucket.min_tokens + bucket.max_tokens) / 2 for bucket in result.by_length],
            [getattr(bucket, comparison.metric) * (100 if is_exact_match else 1) for bucket in result.by_length],
        )
        for result in comparison.results
    ]
    return plot_lengths(
        lines,
        file,
        ylabel="exact match (%)" if is_exact_match else "BLEU",
        xlabel="source length (tokens)",
        title=title,
        top=100 if is_exact_match else None,
        longest=comparison.longest,
    )


def _plot_training(comparison: Comparison, file: str | Path, title: str) -> Path:
    in_seconds, has_curves = comparison.unit == "seconds", any(result.curve for result in comparison.results)
    split = "validation" if has_curves or comparison.split == "valid" else "test"
    lines = [
        PlotLine(
            _label(result),
            [point.seconds if in_seconds else point.tokens for point in result.curve],
            [100 * point.score for point in result.curve] or [100 * result.scores[comparison.metric]],
        )
        for result in comparison.results
    ]
    return plot_training(
        lines,
        file,
        ylabel=f"{TITLES[comparison.metric]} on the {split} split (%)",
        xlabel="seconds of training" if in_seconds else f"{TARGETS[comparison.kind]} trained on",
        title=title,
        suffix=("as trained" if comparison.split == "valid" else "as trained, test split") if has_curves else "",
    )


def _label(result: ModelResult) -> str:
    return f"{result.name} ({result.year})" if result.year else result.name


def _summary(comparison: Comparison) -> str:
    split = "test" if comparison.split == "test" else "validation"
    summary = f"{comparison.data}, {comparison.budget}; scored on the {split} split, {comparison.size}"
    if comparison.kind != "pairs":
        summary += f", context {comparison.context}, vocabulary {comparison.vocab_size:,}"
    return summary


def _notes(comparison: Comparison) -> list[str]:
    """What the models do not share, and which of them cheat."""
    notes = []
    for result in comparison.results:
        size = f"{result.vocab_size:,} tokens" if result.vocab_size is not None else ""
        if result.init_from is not None:
            tokenizer = f" and their tokenizer, of {size}" if size else ""
            notes.append(f"{result.name} starts from given weights ({result.init_from}): it has their size{tokenizer}.")
        elif size:
            notes.append(f"{result.name} has its own tokenizer, of {size}.")
        if result.sees_future:
            notes.append(f"{result.name}: {LEAK_WARNING}.")
    return notes


def _result_table(comparison: Comparison) -> tuple[_Row, list[_Row]]:
    """The header and one row per model."""
    metrics = [name for name in TITLES if all(name in result.scores for result in comparison.results)]
    targets = TARGETS[comparison.kind]
    header = ["year", "model", "parameters", targets, "FLOPs", "seconds", *(TITLES[name] for name in metrics)]
    best = best_result(comparison)
    best_score = None if best is None else best.scores[comparison.metric]
    header.append("")
    rows = [
        [
            str(result.year or ""),
            result.name,
            f"{result.n_params:,}",
            *_cost(result),
            *(FORMATS.get(name, PERCENT).format(result.scores[name]) for name in metrics),
            "leaks" if result.sees_future else "best" if result.scores[comparison.metric] == best_score else "",
        ]
        for result in comparison.results
    ]
    return header, rows


def _cost(result: ModelResult) -> _Row:
    """Targets, FLOPs and seconds of training; empty for a model object, whose training is unknown."""
    if not result.run:
        return ["", "", ""]
    return [f"{result.n_tokens:,}", f"{result.flops:.2g}" if result.flops else "0", f"{result.seconds:.1f}"]


def best_result(comparison: Comparison) -> ModelResult | None:
    """The model with the best score, without those that see what they predict; None if there is no other to compare it
    with."""
    if len(comparison.results) < 2:
        return None
    honest = [result for result in comparison.results if not result.sees_future] or comparison.results
    choose = min if comparison.metric in ("bits_per_byte", "perplexity") else max
    return choose(honest, key=lambda result: result.scores[comparison.metric])


def _split_sample(comparison: Comparison, result: ModelResult) -> tuple[str, str]:
    """The prompt of a sample and what the model wrote after it; no prompt if a short context cut it."""
    if comparison.prompt and result.sample.startswith(comparison.prompt):
        return comparison.prompt, result.sample.removeprefix(comparison.prompt)
    return "", result.sample


def _sample_title(result: ModelResult, prompt: str) -> str:
    return f'{result.name} continues "{_printable(" ".join(prompt.split()))}":' if prompt else f"{result.name} writes:"


def _length_title(comparison: Comparison) -> str:
    longest = f"; the longest in training has {comparison.longest}" if comparison.longest else ""
    return f"{TITLES[comparison.metric]} by the number of source tokens{longest}"


def _length_table(comparison: Comparison) -> tuple[_Row, list[_Row]] | None:
    """One row per length bucket, one column per model; None if nothing was scored by length."""
    buckets = [{(b.min_tokens, b.max_tokens, b.n): b for b in result.by_length} for result in comparison.results]
    keys = sorted(set().union(*buckets))
    if not keys:
        return None
    rows = []
    for key in keys:
        least, most, n_pairs = key
        row = [f"{least}-{most}" if least < most else str(least), f"{n_pairs:,}"]
        for by_key in buckets:
            score = getattr(by_key[key], comparison.metric) if key in by_key else None
            row.append("" if score is None else FORMATS[comparison.metric].format(score))
        rows.append(row)
    return ["tokens", "sentences", *(result.name for result in comparison.results)], rows


def _printable(line: str) -> str:
    """Control characters replaced, so that a sample cannot steer the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)


def _aligned(header: _Row, rows: Sequence[_Row], *, left: int | None = None) -> str:
    """Columns flush right, but for the column `left`."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        cells = [
            cell.ljust(w) if i == left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _markdown_table(header: _Row, rows: Sequence[_Row], *, left: int | None = None) -> str:
    rule = "| " + " | ".join("---" if i == left else "---:" for i in range(len(header))) + " |"
    lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in (header, *rows)]
    return "\n".join([f"| {lines[0]} |", rule, *(f"| {line} |" for line in lines[1:])])
