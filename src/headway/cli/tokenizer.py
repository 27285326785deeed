"""headway tokenizer train | encode | decode | show"""

import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli import options as given
from headway.cli.options import Json, print_json

if TYPE_CHECKING:
    from headway.tokenizers import Tokenizer

app = typer.Typer(
    help="Train a tokenizer, encode and decode with it, and look at its pieces.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Which = Annotated[
    str,
    typer.Argument(
        help="A folder or file: tokenizer.json, GPT-2's encoder.json, BERT's vocab.txt, a SentencePiece .model, "
        "a .tiktoken file, a model directory."
    ),
]
Texts = Annotated[list[str] | None, typer.Argument(help="Text; without it, stdin is read.", show_default=False)]


@app.command()
def train(
    source: Annotated[str, typer.Argument(help="Text to learn from: a file, folder, glob, built-in corpus, pairs, …")],
    target: Annotated[
        str | None, typer.Argument(help="The file that is parallel to SOURCE: one vocabulary for both.")
    ] = None,
    kind: Annotated[str, typer.Option(help="char, word, bpe, wordpiece or unigram.")] = "bpe",
    vocab_size: Annotated[
        int | None, typer.Option(help="Tokens, special ones included. Default: 8000; every word for --kind word.")
    ] = None,
    min_frequency: Annotated[
        int | None, typer.Option(help="Leave out words (word) or pairs (bpe, wordpiece) seen less often.")
    ] = None,
    lowercase: Annotated[
        bool | None, typer.Option("--lowercase/--cased", help="Lower-case the text (word, wordpiece).")
    ] = None,
    pre_tokenizer: Annotated[
        str | None,
        typer.Option(
            help="word: cut at 'punctuation' too, or only at 'spaces', or at 'whitespace', which is dropped.",
            show_default=False,
        ),
    ] = None,
    special_tokens: Annotated[
        list[str] | None, typer.Option("--special-token", help="A special token to add. Repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for tokenizer.json. Default: the next free one.")] = None,
    format: given.Format = "auto",
    text: given.TextColumn = None,
    pairs: given.PairColumns = None,
    separator: given.Separator = None,
    tag_scheme: given.TagScheme = "bio",
    errors: given.Errors = "strict",
    json: Json = False,
) -> None:
    """Make a tokenizer for a text; transformers.AutoTokenizer opens the result.

    \b
    Examples:
      headway tokenizer train pydocs --vocab-size 1000 --out my-bpe
      headway tokenizer train my.txt --kind word --min-frequency 2 --out my-words
      headway tokenizer train dates --kind unigram --vocab-size 60
    """
    import time

    from headway.cli.display import ReadingDisplay, say
    from headway.data import open_source
    from headway.errors import CheckpointError, ConfigError
    from headway.files import free_name, new_directory
    from headway.tokenizers import KINDS
    from headway.tokenizers import train as train_tokenizer

    if kind not in KINDS:
        train_tokenizer(kind, [])  # the error that names what there is
    if vocab_size is not None and kind == "char":
        raise ConfigError(f"--vocab-size {vocab_size}: characters are as many as the text has; leave it out")
    data = open_source(
        source,
        format=format,
        text=text,
        pairs=pairs,
        target_path=target,
        separator=given.unescaped(separator),
        tag_scheme=tag_scheme,
        errors=errors,
    )
    place = out or free_name(Path(f"tokenizer-{kind}"))
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise CheckpointError(f"{place} is there already; choose another place with --out")
    options: dict[str, Any] = {"min_frequency": min_frequency, "lowercase": lowercase, "pre_tokenizer": pre_tokenizer}
    options = {name: value for name, value in options.items() if value is not None}
    options |= {"special_tokens": special_tokens or []} | (
        {"progress": sys.stderr.isatty()} if kind not in ("char", "word") else {}
    )
    started = time.monotonic()
    with ReadingDisplay("reading", data.size) as display:
        made = train_tokenizer(kind, display.count(data.texts()), vocab_size, **options)
    with new_directory(place) as aside:
        made.save(aside)
    seconds = time.monotonic() - started
    if json:
        print_json({**_facts(made), "kind": kind, "path": str(place), "bytes": display.done, "seconds": seconds})
        return
    say(f"read {display.done / 1e6:.2f} MB in {seconds:.1f} s")
    if vocab_size is not None and made.vocab_size < vocab_size:
        say(f"the text gives no more than {made.vocab_size:,} tokens")
    print(f"saved: {place} ({kind}, {made.vocab_size:,} tokens)")
    print(f'try:   headway tokenizer show {place} "Some text to cut"')


@app.command()
def encode(tokenizer: Which, texts: Texts = None, json: Json = False) -> None:
    """Print the token ids of texts, a line each; without texts, of each line of stdin.

    \b
    Examples:
      headway tokenizer encode my-bpe "To be or not to be"
      headway tokenizer encode my-bpe "To be" "or not" --json
    """
    from headway.tokenizers import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    for some in _batches(_lines(texts)):
        for line, ids in zip(some, loaded.encode_batch(some), strict=True):
            if json:
                offsets = loaded.encode_with_offsets(line).offsets
                tokens = [loaded.token(id) for id in ids]
                print_json({"text": line, "ids": ids, "tokens": tokens, "offsets": offsets})
            else:
                print(*ids)


@app.command()
def decode(
    tokenizer: Which,
    ids: Annotated[list[str] | None, typer.Argument(help="Token ids; without them, lines of stdin.")] = None,
    special: Annotated[bool, typer.Option("--special", help="Show special tokens too.")] = False,
    json: Json = False,
) -> None:
    """Print the text of token ids; without ids, of each line of stdin.

    \b
    Example:
      headway tokenizer decode my-bpe 51 78
    """
    from headway.errors import InputError
    from headway.tokenizers import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    for line in _lines([" ".join(ids)] if ids else None):
        numbers = []
        if line.startswith("{"):  # what `encode --json` writes
            line = " ".join(map(str, _ids_of(line)))
        for word in line.strip("[]").replace(",", " ").split():
            if not word.isdecimal() or int(word) >= loaded.vocab_size:
                raise InputError(f"{word!r} is no token id: ids are whole numbers from 0 to {loaded.vocab_size - 1}")
            numbers.append(int(word))
        text = loaded.decode(numbers, special=special)
        print_json({"ids": numbers, "text": text}) if json else print(text)


@app.command()
def show(
    tokenizers: Annotated[list[str], typer.Argument(help="One tokenizer or more, then the text: TOKENIZER… TEXT.")],
    lines: Annotated[int, typer.Option(help="Lines of the text to show, at least 0.")] = 8,
    json: Json = False,
) -> None:
    """Colour the pieces of a text, and compare tokenizers on it.

    The last argument is the text: a file, a folder, a built-in corpus, - for stdin, or the words themselves; without
    one, a word tokenizer shows its most frequent words. Characters per token say how
    short texts become; fertility is tokens per word; what a vocabulary costs is its size times the model's width.

    \b
    Examples:
      headway tokenizer show my-bpe "To be, or not to be"
      headway tokenizer show my-bpe my-words pydocs --lines 3
    """
    from headway.tokenizers.loading import load_tokenizer, tokenizer_file

    if lines < 0:
        raise typer.BadParameter(f"{lines}: at least 0", param_hint="--lines")
    *names, last = tokenizers
    if not names or (Path(last).is_dir() and tokenizer_file(Path(last))):
        names, texts = [*names, last], []
    else:
        texts = _texts_of(last)
    loaded = {name: load_tokenizer(name) for name in names}
    sample = "\n".join(islice((line for text in texts for line in text.splitlines()), lines))
    if json:
        found = []
        for name, tokenizer in loaded.items():
            pieces = [sample[start:end] for start, end in tokenizer.encode_with_offsets(sample).offsets]
            found.append({"tokenizer": name, **_facts(tokenizer), **_measures(tokenizer, texts), "pieces": pieces})
        print_json(found)
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for name, tokenizer in loaded.items():
        console.print(f"{name}: {tokenizer.kind}, {tokenizer.vocab_size:,} tokens", style="bold")
        if tokenizer.special_ids:
            console.print("special: " + ", ".join(f"{t} {i}" for t, i in tokenizer.special_ids.items()), markup=False)
        if tokenizer.counts and not texts:
            for token, n in list(tokenizer.counts.items())[:20]:
                console.print(f"{n:>10,}  {token!r}", markup=False)
        if sample:
            console.print(_coloured(tokenizer, sample, console.is_terminal))
            console.print()
    if texts:
        width = max(map(len, [*names, "tokenizer"]))
        print(
            f"{'tokenizer':{width}} {'vocabulary':>10} {'tokens':>10} {'chars/token':>12} {'fertility':>10} "
            f"{'unknown':>8}"
        )
        for name, tokenizer in loaded.items():
            m = _measures(tokenizer, texts)
            print(
                f"{name:{width}} {tokenizer.vocab_size:>10,} {m['tokens']:>10,} {m['characters_per_token']:>12.2f} "
                f"{m['fertility']:>10.2f} {m['unknown']:>8,}"
            )


def _ids_of(line: str) -> list[Any]:
    import msgspec

    from headway.errors import InputError

    try:
        return list(msgspec.json.decode(line)["ids"])
    except (msgspec.DecodeError, KeyError, TypeError):
        raise InputError(
            f"{line:.60} is not JSON with a list of ids, as `headway tokenizer encode --json` writes"
        ) from None


def _coloured(tokenizer: "Tokenizer", text: str, in_colour: bool) -> Any:
    """The text with its pieces on changing backgrounds, or with bars between them where there is no colour.

    Pieces that share a character, as bytes of one do, are one piece here.
    """
    from rich.text import Text

    spans: list[list[int]] = []
    for start, end in tokenizer.encode_with_offsets(text).offsets:
        if spans and start < spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], end)
        elif end > start:
            spans.append([start, end])
    colours = ("black on bright_cyan", "black on bright_yellow", "black on bright_green", "black on bright_magenta")
    shown = Text()
    done = 0
    for i, (start, end) in enumerate(spans):
        shown.append(text[done:start])  # in no piece
        piece = text[start:end]
        if in_colour:
            shown.append(piece.replace("\n", "↵\n"), style=colours[i % len(colours)])
        else:
            shown.append(("|" if i else "") + piece.replace("\n", "↵\n"))
        done = end
    shown.append(text[done:])
    return shown


def _facts(tokenizer: "Tokenizer") -> dict[str, Any]:
    return {"model": tokenizer.kind, "vocab_size": tokenizer.vocab_size, "special": tokenizer.special_ids}


def _measures(tokenizer: "Tokenizer", texts: list[str]) -> dict[str, Any]:
    """How a tokenizer does on texts. Words, for fertility, are what stands between spaces (Rust et al. 2021, §3.1)."""
    ids = [id for row in tokenizer.encode_batch(texts) for id in row]
    n_chars, n_bytes = sum(map(len, texts)), sum(len(text.encode()) for text in texts)
    n_words, unknown = sum(len(text.split()) for text in texts), tokenizer.unk_id
    return {
        "characters": n_chars,
        "bytes": n_bytes,
        "words": n_words,
        "tokens": len(ids),
        "characters_per_token": n_chars / len(ids) if ids else 0.0,
        "bytes_per_token": n_bytes / len(ids) if ids else 0.0,
        "fertility": len(ids) / n_words if n_words else 0.0,
        "distinct_tokens": len(set(ids)),
        "unknown": sum(id == unknown for id in ids) if unknown is not None else 0,
    }


def _texts_of(argument: str) -> list[str]:
    """A source of data where the argument names one, or looks as if it meant to; else the words themselves."""
    from headway.data import CORPORA, open_source
    from headway.data.readers import decode_text

    if argument == "-":
        return [decode_text(sys.stdin.buffer.read(), "stdin")]
    names_a_file = re.fullmatch(r"\S*[/\\]\S*|\S+\.\w{1,8}", argument) is not None
    if argument in CORPORA or Path(argument).exists() or names_a_file:
        return list(open_source(argument).texts())
    return [argument] if argument else []


def _lines(texts: list[str] | None) -> Iterator[str]:
    from headway.data.readers import decode_text

    if texts:
        yield from texts
        return
    offset = 0
    for line in sys.stdin.buffer:
        yield decode_text(line, "stdin", offset=offset).removesuffix("\n")
        offset += len(line)


def _batches(lines: Iterator[str]) -> Iterator[list[str]]:
    """So many lines at a time that a long input is encoded in bulk, and a typed line at once."""
    if sys.stdin.isatty():
        yield from ([line] for line in lines)
        return
    some: list[str] = []
    size = 0
    for line in lines:
        some.append(line)
        size += len(line)
        if size > 1 << 20:
            yield some
            some, size = [], 0
    if some:
        yield some
