"""headway tokenizer train | encode | decode | show"""

import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.help import CommandApp
from headway.cli.merge_tables import n_learned_merges, print_learned_merges, print_segmentations
from headway.cli.option_use import OnlyFor, check_options_for
from headway.cli.options import (
    Json,
    ReadFlags,
    check_minimum,
    command,
    note_unknown_text,
    print_json,
    with_option_groups,
)

if TYPE_CHECKING:
    from headway.tokenizers import Tokenizer

ENCODE_BATCH_CHARS = 1 << 20
MAX_WORDS_SHOWN = 20
COLOURS = ("black on bright_cyan", "black on bright_yellow", "black on bright_green", "black on bright_magenta")

app = CommandApp(help="Train a tokenizer, encode and decode text, and compare tokenizers.")

TokenizerPath = Annotated[
    str,
    typer.Argument(
        help="A folder or file: tokenizer.json, GPT-2's encoder.json, BERT's vocab.txt, a SentencePiece .model, "
        "a .tiktoken file, a model directory."
    ),
]


# ── train ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class KindFlags:
    """Options of the kinds of tokenizer."""

    vocab_size: Annotated[
        int | None, typer.Option(help="Number of tokens, special ones included. Default: 8000; all words for word.")
    ] = None
    min_frequency: Annotated[
        int | None, typer.Option(help="Drop words (word) or pairs (bpe, wordpiece) that are less frequent.")
    ] = None
    lowercase: Annotated[
        bool | None, typer.Option("--lowercase/--cased", help="Lowercase the text or not (word, wordpiece).")
    ] = None
    pre_tokenizer: Annotated[
        str | None,
        typer.Option(
            help="word: split at punctuation (and spaces), spaces or whitespace (dropped). Default: punctuation.",
            show_default=False,
        ),
    ] = None
    special_tokens: Annotated[
        list[str] | None, typer.Option("--special-token", help="Add a special token; repeatable.")
    ] = None

    @property
    def options(self) -> dict[str, Any]:
        """The options that were given, as keyword arguments of `headway.tokenizers.train`."""
        return {name: value for name, value in self.__dict__.items() if value is not None}


@app.command()
@with_option_groups
def train(
    source: Annotated[
        str, typer.Argument(help="Training text: a file, folder, glob, built-in corpus, pairs, …; see headway data.")
    ],
    target: Annotated[
        str | None, typer.Argument(help="The file that is parallel to SOURCE, for one joint vocabulary.")
    ] = None,
    *,
    kind: Annotated[str, typer.Option(help="char, word, bpe, wordpiece or unigram.")] = "bpe",
    training: KindFlags,
    explain: Annotated[
        int | None,
        typer.Option(metavar="N", help="Show the first N merges with the frequency of each pair (bpe)."),
        OnlyFor(kind="bpe"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for tokenizer.json. Default: the next free tokenizer-KIND.")
    ] = None,
    reading: ReadFlags,
    json: Json = False,
) -> None:
    """Train a tokenizer on a text.

    The result is a folder with tokenizer.json, which transformers.AutoTokenizer opens too.

    \b
    Examples:
      headway tokenizer train pydocs --vocab-size 1000 --out my-bpe
      headway tokenizer train my.txt --kind word --min-frequency 2 --out my-words
      headway tokenizer train my.txt --kind unigram --vocab-size 30
      headway tokenizer train my.txt --vocab-size 300 --explain 10
    """
    from headway.data import open_source
    from headway.display import BytesDisplay, print_status
    from headway.errors import CheckpointError
    from headway.files import free_name, new_directory
    from headway.tokenizers import train as train_tokenizer
    from headway.tokenizers.bpe import count_words, learn_merges

    check_minimum("--explain", explain)
    check_options_for(f"--kind {kind}, which learns no merges", kind=kind)
    if training.vocab_size is not None and kind == "char":
        raise typer.BadParameter(
            "a char tokenizer has every character of the text: leave it out", param_hint="--vocab-size"
        )
    data = open_source(source, target_path=target, **reading.options_for(source, target))
    folder = out or free_name(Path(f"tokenizer-{kind}"))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(f"{folder} already exists; choose another folder with --out")
    show_progress = {"progress": sys.stderr.isatty()} if kind not in ("char", "word") else {}
    start = time.monotonic()
    word_counts: Counter[str] = Counter()
    with BytesDisplay("reading", data.size) as display:
        texts = display.count(data.texts())
        texts = texts if explain is None else count_words(texts, word_counts)
        trained = train_tokenizer(kind, texts, **training.options, **show_progress)
    with new_directory(folder) as partial:
        trained.save(partial)
    seconds = time.monotonic() - start
    n_merges = 0 if explain is None else min(explain, n_learned_merges(trained))
    merges = learn_merges(word_counts, n_merges, min_frequency=training.min_frequency or 0)
    if json:
        explained = {} if explain is None else {"merges": [asdict(merge) for merge in merges]}
        labels = {**_describe(trained), "kind": kind, "path": str(folder), "bytes": display.done, "seconds": seconds}
        print_json({**labels, **explained})
        return
    print_status(f"read {display.done / 1e6:.2f} MB in {seconds:.1f} s")
    if training.vocab_size is not None and trained.vocab_size < training.vocab_size:
        print_status(f"the text is too short for more than {trained.vocab_size:,} tokens")
    print(f"saved: {folder} ({kind}, {trained.vocab_size:,} tokens)")
    if explain is not None:
        print_learned_merges(merges, n_learned_merges(trained), trained)
    example = f'tokenizer show {shlex.quote(str(folder))} "Some text to tokenize"'
    print_status(f"try:   {command(example)}")


# ── encode and decode ─────────────────────────────────────────────────────────────────────────────────────────────


@app.command()
def encode(
    tokenizer: TokenizerPath,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts. Default: the lines of stdin.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Print the token ids of texts, one line per text.

    \b
    Examples:
      headway tokenizer encode my-bpe "To be or not to be"
      headway tokenizer encode my-bpe "To be" "or not" --json
    """
    from headway.tokenizers import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    for batch in _batches(_lines(texts)):
        note_unknown_text(loaded, batch, "text")
        for text, ids in zip(batch, loaded.encode_batch(batch), strict=True):
            if json:
                tokens, offsets = [loaded.token(id) for id in ids], loaded.encode_with_offsets(text).offsets
                print_json({"text": text, "ids": ids, "tokens": tokens, "offsets": offsets})
            else:
                print(*ids)


@app.command()
def decode(
    tokenizer: TokenizerPath,
    ids: Annotated[list[str] | None, typer.Argument(help="Token ids. Default: the lines of stdin.")] = None,
    special: Annotated[bool, typer.Option("--special", help="Keep special tokens in the text.")] = False,
    json: Json = False,
) -> None:
    """Print the text of token ids, one line per line of ids.

    Lines of stdin may be ids, or the output of `headway tokenizer encode --json`.

    \b
    Example:
      headway tokenizer decode my-bpe 51 78
    """
    from headway.tokenizers import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    for line in _lines([" ".join(ids)] if ids else None):
        token_ids = _parse_ids(line, loaded.vocab_size)
        text = loaded.decode(token_ids, skip_special_tokens=not special)
        print_json({"ids": token_ids, "text": text}) if json else print(text)


def _parse_ids(line: str, vocab_size: int) -> list[int]:
    """Ids separated by spaces or commas, or the JSON object that `encode` prints."""
    import msgspec

    from headway.errors import InputError

    words: list[Any]
    if line.startswith("{"):
        try:
            words = list(map(str, msgspec.json.decode(line)["ids"]))
        except (msgspec.DecodeError, KeyError, TypeError):
            raise InputError(
                f"{line:.60} is not JSON with a list of ids, as `headway tokenizer encode --json` prints"
            ) from None
    else:
        words = line.strip("[]").replace(",", " ").split()
    for word in words:
        if not word.isdecimal() or int(word) >= vocab_size:
            raise InputError(f"{word!r} is not a token id: ids are integers from 0 to {vocab_size - 1}")
    return list(map(int, words))


def _lines(texts: list[str] | None) -> Iterator[str]:
    """The texts, or the lines of stdin."""
    from headway.data.text_files import decode_text

    if texts:
        yield from texts
        return
    offset = 0
    for line in sys.stdin.buffer:
        yield decode_text(line, "stdin", offset=offset).removesuffix("\n")
        offset += len(line)


def _batches(lines: Iterator[str]) -> Iterator[list[str]]:
    """Batches of lines, so that a long input is encoded in bulk; in a terminal one line at a time."""
    if sys.stdin.isatty():
        yield from ([line] for line in lines)
        return
    batch: list[str] = []
    n_chars = 0
    for line in lines:
        batch.append(line)
        n_chars += len(line)
        if n_chars > ENCODE_BATCH_CHARS:
            yield batch
            batch, n_chars = [], 0
    if batch:
        yield batch


# ── show ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@app.command()
def show(
    tokenizers: Annotated[list[str], typer.Argument(help="One tokenizer or more, then the text: TOKENIZER… TEXT.")],
    lines: Annotated[int, typer.Option(help="Lines of the text to show, at least 0."), OnlyFor(text="given")] = 8,
    merges: Annotated[
        bool,
        typer.Option("--merges", help="Show every step: merges by rank, longest matches or scores."),
        OnlyFor(text="given"),
    ] = False,
    json: Json = False,
) -> None:
    """Show how tokenizers split a text, and compare them.

    The last argument is the text: a file, a folder, a built-in corpus, - for stdin, or the text itself. Without a text,
    a word tokenizer shows its most frequent words. Fertility is the number of tokens per word. --merges shows how each
    word is split: the merges of BPE with their ranks (0 is the first one learned), the longest matches of WordPiece,
    the pieces of unigram with their scores.

    \b
    Examples:
      headway tokenizer show my-bpe "To be, or not to be"
      headway tokenizer show my-bpe my-words pydocs --lines 3
      headway tokenizer show my-bpe "The cat sat" --merges
    """
    from headway.tokenizers.loading import load_tokenizer
    from headway.tokenizers.segmentation import explain_segmentation
    from headway.tokenizers.statistics import measure_tokenizer

    check_minimum("--lines", lines, 0)
    names, texts = _split_arguments(tokenizers)
    if not texts:
        check_options_for("tokenizers without a text", text="none")
    loaded = {name: load_tokenizer(name) for name in names}
    sample = "\n".join(islice((line for text in texts for line in text.splitlines()), lines))
    stats = {name: measure_tokenizer(tokenizer, texts) for name, tokenizer in loaded.items()}
    words = {name: explain_segmentation(tokenizer, sample) for name, tokenizer in loaded.items() if merges}
    if json:
        print_json([
            {"tokenizer": name, **_describe(tokenizer), **stats[name].to_dict(), "pieces": _pieces(tokenizer, sample),
             **({"words": [word.to_dict() for word in words[name]]} if merges else {})}
            for name, tokenizer in loaded.items()
        ])  # fmt: skip
        return
    for name, tokenizer in loaded.items():
        _print_tokenizer(name, tokenizer, sample, show_words=not texts)
        if merges:
            print_segmentations(words[name], tokenizer)
    if texts:
        width = max(map(len, [*names, "tokenizer"]))
        columns = f"{'vocabulary':>10} {'tokens':>10} {'chars/token':>12} {'fertility':>10} {'unknown':>8}"
        print(f"{'tokenizer':{width}} {columns}")
        for name, tokenizer in loaded.items():
            s = stats[name]
            print(
                f"{name:{width}} {tokenizer.vocab_size:>10,} {s.tokens:>10,} {s.characters_per_token:>12.2f} "
                f"{s.fertility:>10.2f} {s.unknown:>8,}"
            )


def _split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The tokenizers and the texts; the last argument is the text unless it is a tokenizer or the only one."""
    from headway.tokenizers.loading import tokenizer_file

    *names, last = arguments
    if not names or (Path(last).is_dir() and tokenizer_file(Path(last))):
        return arguments, []
    return names, _read_texts(last)


def _read_texts(argument: str) -> list[str]:
    """The texts of a data source if the argument is, or looks like, the name of one; else the argument itself."""
    from headway.data import CORPORA, open_source
    from headway.data.text_files import decode_text

    if argument == "-":
        return [decode_text(sys.stdin.buffer.read(), "stdin")]
    looks_like_path = re.fullmatch(r"\S*[/\\]\S*|\S+\.\w{1,8}", argument) is not None
    if argument in CORPORA or Path(argument).exists() or looks_like_path:
        return list(open_source(argument).texts())
    return [argument] if argument else []


def _describe(tokenizer: "Tokenizer") -> dict[str, Any]:
    return {"model": tokenizer.kind, "vocab_size": tokenizer.vocab_size, "special": tokenizer.special_ids}


def _pieces(tokenizer: "Tokenizer", text: str) -> list[str]:
    return [text[start:end] for start, end in tokenizer.encode_with_offsets(text).offsets]


def _print_tokenizer(name: str, tokenizer: "Tokenizer", sample: str, *, show_words: bool) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{name}: {tokenizer.kind}, {tokenizer.vocab_size:,} tokens", style="bold")
    if tokenizer.special_ids:
        special = ", ".join(f"{token} {id}" for token, id in tokenizer.special_ids.items())
        console.print(f"special: {special}", markup=False)
    if tokenizer.counts and show_words:
        for word, n in list(tokenizer.counts.items())[:MAX_WORDS_SHOWN]:
            console.print(f"{n:>10,}  {word!r}", markup=False)
    if sample:
        console.print(_coloured(tokenizer, sample, console.is_terminal))
        console.print()


def _coloured(tokenizer: "Tokenizer", text: str, in_colour: bool) -> Any:
    """The text with alternating background colours, or with bars, between its tokens.

    Tokens that share a character, such as its bytes, are shown as one.
    """
    from rich.text import Text

    spans: list[list[int]] = []
    for start, end in tokenizer.encode_with_offsets(text).offsets:
        if spans and start < spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], end)
        elif end > start:
            spans.append([start, end])
    coloured = Text()
    position = 0
    for i, (start, end) in enumerate(spans):
        coloured.append(text[position:start])  # in no token
        token = text[start:end].replace("\n", "↵\n")
        if in_colour:
            coloured.append(token, style=COLOURS[i % len(COLOURS)])
        else:
            coloured.append(("|" if i else "") + token)
        position = end
    coloured.append(text[position:])
    return coloured
