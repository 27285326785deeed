"""headway translate"""

import json as json_lines
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.channels import LanguageModelOfTarget, Reverse, TuneOn, WeightsText, make_channel, sides
from headway.cli.options import Device, Dtype, Json, check_out, print_json, read_lines, say
from headway.cli.samplers import Samplers, names_in, settings_from, with_samplers

if TYPE_CHECKING:
    from headway.generation.translate import Translation
    from headway.tokenizers import Tokenizer


@with_samplers
def translate(
    model: Annotated[str, typer.Argument(help="A model directory, or a run such as runs/multi30k-en-de.")],
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to translate. Default: the lines of stdin.")] = None,
    source: Annotated[Path | None, typer.Option("-i", "--in", help="A file with a text per line instead.")] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write to this file, whole or not at all, line by line alike.")
    ] = None,
    num_beams: Annotated[
        int | None, typer.Option(help="Beam search with so many beams, 1 or more. Default: 5, unless samplers are set.")
    ] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always the best token: the same as --num-beams 1.")] = False,
    n_best: Annotated[
        int, typer.Option("-n", "--n-best", help="Translations of each text, with scores; at most --num-beams.")
    ] = 1,
    length_penalty: Annotated[
        float | None, typer.Option(help="Beam search: any number; above 0 favours long texts. Off: 0. Default: 1.")
    ] = None,
    length_norm: Annotated[str | None, typer.Option(help="Beam search: power (default) or gnmt.")] = None,
    early_stopping: Annotated[str | None, typer.Option(help="Beam search: true, false (default) or never.")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Tokens of a translation at most, 1 or more. Default: the model's context.")
    ] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut texts longer than the context.")] = False,
    align: Annotated[
        bool, typer.Option("--align", help="Also show which word of the source each word of the best looked at most.")
    ] = False,
    reverse_model: Reverse = None,
    lm: LanguageModelOfTarget = None,
    weights: WeightsText = None,
    tune: TuneOn = None,
    seed: Annotated[
        int | None, typer.Option(help="With samplers: the same seed gives the same text. Default: a new one.")
    ] = None,
    samplers: Samplers = {},  # noqa: B006 (replaced by the flags)
    batch_size: Annotated[int, typer.Option(help="Texts translated at a time, at least 1.")] = 64,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
) -> None:
    """Translate texts, or whatever else a model learned to make of one text: dates, spellings, summaries.

    Every line has one line of translation; empty lines stay empty. With --json and --out the file holds one JSON object
    per line. Samplers (--temperature 0.7, --top-p 0.9, …) draw at random instead of searching. With --reverse-model and --lm
    the beams are reranked by how well the source is explained by each, and how fluent it is (the noisy channel).

    \b
    Examples:
      headway translate runs/reverse "abc"
      headway translate runs/reverse abc xyz --num-beams 3 --n-best 3
      headway translate runs/reverse "abc" --align --json
      headway translate runs/reverse "abc" --temperature 1 --seed 1
      headway translate runs/reverse "abc" --reverse-model runs/reverse --weights channel=0.3 --num-beams 10
    """
    given = _texts(texts, source)
    stopping: dict[str | None, Any] = {None: None, "true": True, "false": False, "never": "never"}
    if early_stopping not in stopping:
        raise typer.BadParameter("true, false or never", param_hint="--early-stopping")
    for name, value in (("--n-best", n_best), ("--batch-size", batch_size)):
        if value < 1:
            raise typer.BadParameter(f"{value}: at least 1", param_hint=name)
    if greedy and num_beams not in (None, 1):
        raise typer.BadParameter(f"always the best token, or {num_beams} beams: one of them", param_hint="--greedy")
    check_out(out, "--out")
    if out is not None and source is not None and out.exists() and out.samefile(source):
        raise typer.BadParameter(f"{out} is what is to be translated: name another file", param_hint="--out")
    if align and out is not None and not json:
        raise typer.BadParameter("in a file there is room for it with --json", param_hint="--align")
    if source is not None:
        _check_direction(model, source)

    import headway
    from headway.files import finite, write_text
    from headway.generation.alignment import align as align_words
    from headway.generation.source import require_translator
    from headway.generation.translate import translations
    from headway.nn.linear import PackedWeights

    loaded, tokenizer = require_translator(headway.load(model, device=device, dtype=dtype))
    reranker = make_channel(
        loaded,
        model,
        reverse_model=reverse_model,
        lm=lm,
        weights=weights,
        tune=tune,
        num_beams=1 if greedy else num_beams,
        batch_size=batch_size,
        device=device,
        dtype=dtype,
    )
    settings = settings_from(samplers, tokenizer)
    if samplers["temperature"] is not None:
        settings["temperature"] = samplers["temperature"]
    _note_unknown(tokenizer, given)
    started = time.monotonic()
    found: dict[int, Translation] = {}
    show = sys.stderr.isatty() and len(given) > batch_size
    made = translations(
        loaded,
        given,
        num_beams=1 if greedy else num_beams,
        n_best=n_best,
        length_penalty=length_penalty,
        length_norm=length_norm,
        early_stopping=stopping[early_stopping],
        max_new_tokens=max_new_tokens,
        truncate=truncate,
        batch_size=batch_size,
        seed=seed,
        sampler_preset=samplers["sampler_preset"],
        sampler_order=names_in(samplers["sampler_order"]),
        reranker=reranker,
        note=say,
        **settings,
    )
    with PackedWeights():
        for row, translation in made:
            found[row] = translation
            if show:
                rate = len(found) / (time.monotonic() - started)
                print(f"\r{len(found):,} of {len(given):,}  {rate:,.0f} a second ", end="", file=sys.stderr)
    if show:
        print(file=sys.stderr)
    seconds = time.monotonic() - started
    words = {}
    if align:
        words = {row: align_words(loaded, given[row], t.text, truncate=truncate) for row, t in found.items() if t.text}
    documents = [_document(given[row], found[row], words.get(row)) for row in range(len(given))]
    if out is not None:
        lines = [json_lines.dumps(finite(d), ensure_ascii=False) if json else _line(d, n_best) for d in documents]
        write_text(out, "".join(f"{line}\n" for line in lines))
        print(f"{len(given):,} line{'s' * (len(given) != 1)} in {seconds:.1f} s: {out}", file=sys.stderr)
    elif json:
        print_json({"model": model, "translations": documents, "seconds": seconds})
    else:
        for document in documents:
            print(_line(document, n_best))
    if align and not json:
        for document in documents:
            _print_alignment(document)


def _texts(texts: list[str] | None, file: Path | None) -> list[str]:
    if texts and file is not None:
        raise typer.BadParameter("texts, or a file of them: one of the two", param_hint="--in")
    if file is not None:
        return read_lines(str(file))
    if texts and texts != ["-"]:
        return texts
    if not texts and sys.stdin.isatty():
        raise typer.BadParameter("give a text, --in FILE, or lines on stdin", param_hint="TEXTS")
    return read_lines("-")


def _check_direction(model: str, file: Path) -> None:
    """A file named like what this model writes is most likely the wrong one."""
    if (both := sides(model)) and file.suffix[1:] == both[1]:
        raise typer.BadParameter(
            f"{file} ends in .{both[1]}, which this model writes; it reads .{both[0]}. If it is meant: < {file}",
            param_hint="--in",
        )


def _note_unknown(tokenizer: "Tokenizer", texts: list[str]) -> None:
    """Say what cannot be read: characters that stand for nothing in this vocabulary."""
    unknown = tokenizer.unk_id
    if unknown is None:
        return
    found: dict[int, list[str]] = {}
    for number, text in enumerate(texts, 1):
        encoded = tokenizer.encode_with_offsets(text.strip())
        spans = zip(encoded.ids, encoded.offsets, strict=True)
        if lost := [text.strip()[a:b] for id, (a, b) in spans if id == unknown]:
            found[number] = lost
    if found:
        number, lost = next(iter(found.items()))
        more = f" ({len(found):,} of {len(texts):,} lines have such)" if len(found) > 1 else ""
        spelled = " ".join("␣" if not text.strip() else text for text in lost)
        print(f"note: line {number} has what this model has never seen: {spelled}{more}", file=sys.stderr)


def _document(source: str, found: "Translation", words: list[Any] | None) -> dict[str, Any]:
    def one(t: "Translation") -> dict[str, Any]:
        terms = {} if t.terms is None else {"terms": t.terms._asdict()}
        return {"text": t.text, "score": t.score, "log_prob": t.log_prob, "ended": t.ended, **terms}

    document = {"source": source, **one(found), "others": [one(other) for other in found.others]}
    if words is not None:
        document["alignment"] = [word._asdict() for word in words]
    return document


def _line(document: dict[str, Any], n_best: int) -> str:
    """The translation in one line; several as lines of rank, score and text."""
    if n_best == 1:
        return _flat(document["text"])
    those = [document, *document["others"]]
    scores = [one["score"] if one["score"] is not None else one["log_prob"] or 0.0 for one in those]
    return "\n".join(
        f"{rank}\t{score:.4f}\t{_flat(one['text'])}"
        for rank, (one, score) in enumerate(zip(those, scores, strict=True), 1)
    )


def _flat(text: str) -> str:
    """In one line, whoever counts them, and in one column."""
    return " ".join("\t".join(text.splitlines()).split("\t"))


def _print_alignment(document: dict[str, Any]) -> None:
    words = document.get("alignment") or []
    if words:
        print()
        width = max(len(word["word"]) for word in words)
        for word in words:
            print(f"  {word['word']:<{width}}  ← {word['source']}  ({word['weight']:.0%})")
