"""Tokenizer files of every format, damaged or hostile: each is refused, or encodes consistently.

A tokenizer that loads must give the same ids on every call, with the fast encoder and the plain one, and after saving
and loading. Ids must be below the vocabulary size, and decoding must restore the bytes that are not charged as lost.
"""

import base64
import copy
import io
import json
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from headway import load_tokenizer
from headway import tokenizers as kinds
from headway.errors import HeadwayError, InputError
from headway.tokenizers import PATTERNS, Tokenizer
from headway.tokenizers.fast_encoding import byte_alphabet
from tests.fuzz.harness import Area
from tests.fuzz.mutations import mutate_bytes, mutate_json, mutate_json_text, replace_file

WORDS = ["to", "be", "or", "not", "that", "is", "the", "question", "it's", "nobler", "mind", "42", "slings,", "naïve"]
TRAINING_TEXT = [" ".join(random.Random(i).choices(WORDS, k=12)) + (".\n" if i % 3 else "") for i in range(40)]
CHARACTERS = [
    *"aAzZ  \t\n\r!?'’09_éßİ中한ไ🎉▁Ġ",
    "\u0301",
    "\u200b",
    "\ufeff",
    "\ufdd0",
    "\x00",
    "\x1c",
    "\u2028",
    "ﷺ",
    "e\u0301",
]
SPECIAL_TEXTS = ["<|endoftext|>", "<unk>", "[UNK]", "[CLS]", "<s>", "</s>", "##a", "<0x41>", "<pad>"]
PATTERN_PARTS = ["a", ".", r"\s", r"\p{L}", "[^a]", "(a|b)", "(?:ab|c)", r"\w", "'", r"(?=a)", r"(?!\S)", r"\d", "\n"]
HOSTILE_PATTERNS = ["(a+)+$", "(a|a)*b", "a*a*a*b", "a?" * 30 + "a" * 30, r"\s+$", "(", "[", "a{9999}", r"(a)\1", ""]
NORMALIZERS: list[dict[str, Any]] = [
    *({"type": name} for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel")),
    {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Prepend", "prepend": "x" * 10_000},
    {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(bytes(2000)).decode()},
    {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    },
]
PRE_TOKENIZERS: list[dict[str, Any]] = [
    *({"type": name} for name in ("WhitespaceSplit", "Whitespace", "BertPreTokenizer", "UnicodeScripts")),
    {"type": "Digits", "individual_digits": True},
    {"type": "Punctuation", "behavior": "Removed"},
    {"type": "CharDelimiterSplit", "delimiter": "a"},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "FixedLength", "length": 0},
    {"type": "FixedLength", "length": 3},
]
DECODERS: list[dict[str, Any]] = [
    *({"type": name} for name in ("Fuse", "ByteFallback", "ByteLevel")),
    {"type": "Strip", "content": " ", "start": 1, "stop": 2**40},
    {"type": "WordPiece", "prefix": "##", "cleanup": True},
    {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
    {"type": "BPEDecoder", "suffix": ""},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]

Files = dict[str, bytes]  # of one tokenizer, by name


class Tokenizers(Area):
    name = "tokenizers"
    full_count = 3_000
    ci_count = 40

    def prepare(self) -> None:
        self.intact: dict[str, Files] = {}
        for kind in ("char", "word", "bpe", "wordpiece", "unigram"):
            size = None if kind in ("char", "word") else 320 if kind == "bpe" else 80
            self.add(kind, kinds.train(kind, TRAINING_TEXT, size))
        self.add("words", kinds.train("word", TRAINING_TEXT, pre_tokenizer="whitespace", special_tokens=["<sep>"]))
        bpe = json.loads(self.intact["bpe"]["tokenizer.json"])
        self.add_gpt2(bpe["model"])
        self.add_tiktoken(bpe["model"])
        self.add_llama(bpe)
        self.add_sentencepiece()
        vocab = json.loads(self.intact["wordpiece"]["tokenizer.json"])["model"]["vocab"]
        self.intact["vocab.txt"] = {"vocab.txt": "".join(f"{token}\n" for token in vocab).encode()}
        self.ids = {name: self.load(files).encode(TRAINING_TEXT[0]) for name, files in self.intact.items()}

    def add(self, name: str, tokenizer: Tokenizer) -> None:
        tokenizer.save(self.folder / name)
        self.intact[name] = {file.name: file.read_bytes() for file in (self.folder / name).iterdir()}
        shutil.rmtree(self.folder / name)

    def add_gpt2(self, model: dict[str, Any]) -> None:
        merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
        self.intact["gpt2"] = {"vocab.json": json.dumps(model["vocab"]).encode(), "merges.txt": merges.encode()}

    def add_tiktoken(self, model: dict[str, Any]) -> None:
        byte_of = byte_alphabet()
        lines = (f"{base64.b64encode(bytes(map(byte_of.get, t))).decode()} {id}\n" for t, id in model["vocab"].items())
        self.intact["tiktoken"] = {"x.tiktoken": "".join(lines).encode()}
        split = {"type": "Split", "pattern": {"Regex": PATTERNS["cl100k"]}, "behavior": "Isolated", "invert": False}
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        document = json.loads(self.intact["bpe"]["tokenizer.json"])
        document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, byte_level]}
        self.intact["cl100k"] = {"tokenizer.json": json.dumps(document).encode()}

    def add_llama(self, bpe: dict[str, Any]) -> None:
        """Llama 2's layout: no bytes as characters but byte tokens, and "▁" for a space."""
        document = copy.deepcopy(bpe)
        letters = ["▁", *sorted(set("".join(WORDS)))]
        tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, "th", "▁th"]
        vocab = {token: i for i, token in enumerate(tokens)}
        replace, prepend = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, NORMALIZERS[9]
        document |= {"added_tokens": [], "pre_tokenizer": None, "post_processor": None}
        document["normalizer"] = {"type": "Sequence", "normalizers": [prepend, replace]}
        steps = [{**replace, "pattern": {"String": "▁"}, "content": " "}, *DECODERS[1::-1], {**DECODERS[3], "stop": 0}]
        document["decoder"] = {"type": "Sequence", "decoders": steps}
        merges = [["t", "h"], ["▁", "th"]]
        document["model"] |= {"vocab": vocab, "merges": merges, "byte_fallback": True, "unk_token": "<unk>"}
        self.intact["llama"] = {"tokenizer.json": json.dumps(document).encode()}

    def add_sentencepiece(self) -> None:
        import sentencepiece

        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TRAINING_TEXT), model_writer=model, vocab_size=40, minloglevel=2
        )
        self.intact["sentencepiece"] = {"tokenizer.model": model.getvalue()}
        from sentencepiece import sentencepiece_model_pb2

        charsmap = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue()).normalizer_spec.precompiled_charsmap
        document = json.loads(self.intact["unigram"]["tokenizer.json"])
        precompiled = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}
        document["normalizer"]["normalizers"].insert(0, precompiled)
        self.intact["t5"] = {"tokenizer.json": json.dumps(document).encode()}

    def load(self, files: Files) -> Tokenizer:
        return load_tokenizer(self.write(files))

    def write(self, files: Files) -> Path:
        folder = self.folder / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, data in files.items():
            (folder / name).write_bytes(data)
        return folder

    def case(self, rng: random.Random) -> str:
        name = rng.choice(list(self.intact))
        files = dict(self.intact[name])
        is_intact = rng.random() < 0.03
        if not is_intact:
            for _ in range(rng.choice([1, 1, 1, 2])):
                damage(files, rng)
        try:
            if not is_intact and rng.random() < 0.05:
                return self.replaced_file(files, rng)
            tokenizer = self.load(files)
            if is_intact and tokenizer.encode(TRAINING_TEXT[0]) != self.ids[name]:
                self.fail("an intact tokenizer gives other ids")
            outcomes = {self.check_text(tokenizer, random_text(rng)) for _ in range(3)}
            self.check_ids(tokenizer, rng)
            self.check_saved(tokenizer, random_text(rng))
        finally:
            shutil.rmtree(self.folder / "case", ignore_errors=True)
        return "loaded, text refused" if "refused" in outcomes else "loaded"

    def replaced_file(self, files: Files, rng: random.Random) -> str:
        folder = self.write(files)
        kind = replace_file(folder / rng.choice(list(files)), rng)
        load_tokenizer(folder).encode("to be")
        return f"loaded without a file ({kind})"

    def check_text(self, tokenizer: Tokenizer, text: str) -> str:
        try:
            ids = tokenizer.encode(text)
        except HeadwayError:
            return "refused"
        if any(not 0 <= i < tokenizer.vocab_size for i in ids):
            self.fail(f"ids {ids[:20]} are not below {tokenizer.vocab_size}")
        if tokenizer.encode(text) != ids:
            self.fail(f"two calls encode {text[:60]!r} differently")
        fast = getattr(tokenizer, "_fast_encoder", None) if hasattr(tokenizer, "backend") else None
        if fast is not None:
            plain = tokenizer._plain_text_backend.encode_batch_fast([text, text], add_special_tokens=False)
            if [row.tolist() for row in fast([text, text])] != [encoding.ids for encoding in plain]:
                self.fail(f"the fast encoder encodes {text[:60]!r} differently")
        try:
            self.check_offsets(tokenizer, text, ids)
            self.check_loss(tokenizer, text, ids)
        except HeadwayError:
            return "refused"
        return "encoded"

    def check_offsets(self, tokenizer: Tokenizer, text: str, ids: list[int]) -> None:
        encoding = tokenizer.encode_with_offsets(text)
        if encoding.ids != ids:
            self.fail(f"encode and encode_with_offsets differ on {text[:60]!r}")
        if any(not 0 <= start <= end <= len(text) for start, end in encoding.offsets):
            self.fail(f"offsets are outside of {text[:60]!r}")

    def check_loss(self, tokenizer: Tokenizer, text: str, ids: list[int]) -> None:
        """What is not charged as lost must be in the decoded text, in order."""
        tokenizer.unknown_text(text)
        lost = tokenizer.lost_bytes(text)
        is_unk_skipped = tokenizer.unk_id in tokenizer.special_ids.values()
        decoded = tokenizer.decode([i for i in ids if is_unk_skipped or i != tokenizer.unk_id])
        if not 0 <= lost <= len(text.encode()):
            self.fail(f"{lost} bytes of {len(text.encode())} are lost")
        if lost and len(text.encode()) - lost > len(decoded.encode()) + tokenizer.drops_whitespace * text.count(" "):
            self.fail(f"{lost} bytes are charged as lost, but {text[:60]!r} decodes to {decoded[:60]!r}")
        if lost == 0 and tokenizer.decode(ids) != text:
            self.fail(f"nothing is charged as lost, but {text[:60]!r} decodes to {tokenizer.decode(ids)[:60]!r}")

    def check_ids(self, tokenizer: Tokenizer, rng: random.Random) -> None:
        """Any ids decode to text, or are refused."""
        ids = [rng.choice([0, 1, 2, 5, tokenizer.vocab_size - 1, tokenizer.vocab_size, 10**6]) for _ in range(5)]
        for row in (ids, [-1], [2**32], [2**70]):
            with suppress(InputError):
                tokenizer.decode(row, skip_special_tokens=rng.random() < 0.5).encode()
        try:
            tokenizer.encode("a\ud800b")
        except InputError:
            return
        self.fail("a lone surrogate was encoded")

    def check_saved(self, tokenizer: Tokenizer, text: str) -> None:
        try:
            ids = tokenizer.encode(text)
        except HeadwayError:
            return
        folder = self.folder / "case" / "saved"
        tokenizer.save(folder)
        loaded = load_tokenizer(folder)
        if loaded.encode(text) != ids or loaded.fingerprint() != tokenizer.fingerprint():
            self.fail(f"{text[:60]!r} has other ids after saving and loading")
        if loaded.special_tokens != tokenizer.special_tokens:
            self.fail(f"special tokens {tokenizer.special_tokens} became {loaded.special_tokens}")


def damage(files: Files, rng: random.Random) -> None:
    """Change one file, by a rule for its format or byte by byte."""
    name = rng.choice(list(files))
    data = files[name]
    try:
        document = json.loads(data) if name.endswith(".json") else None
    except (ValueError, RecursionError):
        document = None
    match rng.randrange(8):
        case 0 | 1 | 2 | 3 if name == "tokenizer.json" and isinstance(document, dict) and "model" in document:
            hostile_pipeline(document, rng)
            files[name] = json.dumps(document).encode()
        case 0 | 1 | 2 | 4 | 5 if document is not None:
            section = rng.choice(["model", "added_tokens", "normalizer", "pre_tokenizer", "decoder"])
            if isinstance(document, dict) and document.get(section):
                document[section] = mutate_json(document[section], rng)
                files[name] = json.dumps(document).encode()
            else:
                files[name] = mutate_json_text(document, rng).encode("utf-8", "surrogatepass")
        case 4 | 5 | 6:
            files[name] = mutate_lines(data, rng)
        case _:
            files[name] = mutate_bytes(data, rng)


def mutate_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    for _ in range(rng.choice([1, 2, 5])):
        i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
        lines[i] = rng.choice(
            [lines[j], b"", lines[i] + b" x", lines[i][:-1], b"a b", b"IQ== -1", b"\xff", lines[i][:2000] * 50]
        )
    return b"\n".join(lines)


def hostile_pipeline(document: dict[str, Any], rng: random.Random) -> None:
    """Add components that grow, drop or change text, ids that are no ids, dropout, truncation."""
    for _ in range(rng.choice([1, 1, 1, 2])):
        match rng.randrange(6):
            case 0 | 1:
                components = [random_normalizer(rng) for _ in range(rng.choice([1, 1, 2, 3, 8, 100]))]
                insert(document, "normalizer", "normalizers", components, rng)
            case 2:
                components = [random_pre_tokenizer(rng) for _ in range(rng.choice([1, 1, 2, 8, 100]))]
                insert(document, "pre_tokenizer", "pretokenizers", components, rng)
            case 3:
                components = [
                    random_replace(rng) if rng.random() < 0.4 else copy.deepcopy(rng.choice(DECODERS))
                    for _ in range(rng.choice([1, 1, 2, 8]))
                ]
                insert(document, "decoder", "decoders", components, rng)
            case 4:
                truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
                padding = {"strategy": {"Fixed": 9}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0}
                document["truncation"] = rng.choice([None, truncation])
                document["padding"] = rng.choice([None, {**padding, "pad_type_id": 0, "pad_token": "x"}])
                if isinstance(document.get("model"), dict):  # it may be damaged already
                    document["model"]["dropout"] = rng.choice([0.5, 1.0, None])
            case _:
                hostile_ids(document, rng)


def hostile_ids(document: dict[str, Any], rng: random.Random) -> None:
    model = document["model"]
    id = rng.choice([-1, 0, 1, 300, 2**22, 2**31, 2**32 - 1, 2**32, 1.5, "1"])
    if isinstance(model.get("vocab"), dict) and rng.random() < 0.5:
        model["vocab"][rng.choice([*list(model["vocab"])[:300], "", "new"])] = id
    elif isinstance(model.get("vocab"), list) and rng.random() < 0.5:
        model["vocab"].append([rng.choice(["", "a" * 100, "a" * 5000, "th"]), rng.choice([0.0, -1e308, 1e308, -3])])
    else:
        token = {"content": rng.choice(["", " ", "a", "th", "<new>", "<|endoftext|>"]), "id": id}
        flags = {flag: rng.random() < 0.3 for flag in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        document["added_tokens"] = [*(document.get("added_tokens") or []), {**token, **flags}]
        rng.shuffle(document["added_tokens"])


def insert(document: dict[str, Any], section: str, key: str, new: list[Any], rng: random.Random) -> None:
    old = document.get(section)
    components = old[key] if isinstance(old, dict) and isinstance(old.get(key), list) else [old] if old else []
    components = [*new, *components] if rng.random() < 0.5 else [*components, *new]
    document[section] = components[0] if len(components) == 1 else {"type": "Sequence", key: components}


def random_normalizer(rng: random.Random) -> dict[str, Any]:
    return random_replace(rng) if rng.random() < 0.4 else copy.deepcopy(rng.choice(NORMALIZERS))


def random_replace(rng: random.Random) -> dict[str, Any]:
    content = rng.choice(["", " ", "a", "aa", "a" * 20, "a" * 200, "x" * 10_000, "▁", "ﷺ"])
    return {"type": "Replace", "pattern": random_pattern(rng), "content": content}


def random_pre_tokenizer(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.5:
        return copy.deepcopy(rng.choice(PRE_TOKENIZERS))
    behavior, invert = rng.choice(BEHAVIORS), rng.random() < 0.3
    return {"type": "Split", "pattern": random_pattern(rng), "behavior": behavior, "invert": invert}


def random_pattern(rng: random.Random) -> dict[str, str]:
    if rng.random() < 0.3:
        return {"String": rng.choice(["", " ", "a", "th", "▁", "aa"])}
    if rng.random() < 0.15:
        return {"Regex": rng.choice(HOSTILE_PATTERNS)}
    parts = [rng.choice(PATTERN_PARTS) + rng.choice(["", "", "+", "*", "?", "{1,3}"]) for _ in range(rng.randint(1, 5))]
    pattern = "".join(part + rng.choice(["", "", "|"]) for part in parts)
    return {"Regex": f"({pattern})+" if rng.random() < 0.1 else pattern}


def random_text(rng: random.Random) -> str:
    match rng.randrange(6):
        case 0:
            return " ".join(rng.choices(WORDS, k=rng.randint(0, 40)))
        case 1:
            return rng.choice(CHARACTERS) * rng.choice([1, 30, 1000, 20_000])
        case 2:
            return "".join(rng.choices([*WORDS, *SPECIAL_TEXTS, *CHARACTERS], k=rng.randint(0, 30)))
        case 3:
            points = [rng.choice([rng.randrange(0x250), rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)])]
            return "".join(map(chr, points * rng.randint(1, 3)))
        case _:
            return "".join(rng.choices(CHARACTERS, k=rng.choice([0, 1, 5, 50, 400])))
