"""Which tokens start a word, and which continue the word of the token before them."""

import numpy as np
from numpy.typing import NDArray

from headway.errors import ConfigError
from headway.tokenizers.base import Tokenizer

SPACE_MARKS = ("Ġ", "Ċ", "▁")  # a space and a line end in byte-level BPE, a space in SentencePiece vocabularies


def continues_word(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """For each token id, whether the token continues a word (V,).

    In WordPiece vocabularies such tokens begin with "##"; elsewhere they are all tokens without a space before them, so
    a comma belongs to its word, as in fairseq (`is_beginning_of_word`). Special tokens continue nothing.
    """
    vocab, special_tokens = tokenizer.vocab, tokenizer.special_ids
    if tokenizer.kind == "WordPiece":
        prefix = tokenizer.backend.model.continuing_subword_prefix
        inner = [id for token, id in vocab.items() if token.startswith(prefix)]
    elif tokenizer.kind == "WordLevel" and any(len(token) > 1 for token in vocab if token not in special_tokens):
        inner = []  # every token is a word, not a character
    elif any(token.startswith(SPACE_MARKS) for token in vocab):
        inner = [id for token, id in vocab.items() if not token.startswith(SPACE_MARKS)]
    else:
        raise ConfigError(
            f"no token of this {tokenizer.kind} tokenizer shows where a word starts, so words cannot be masked whole: "
            f"set train.whole_word_masking=false, or use a wordpiece tokenizer"
        )
    continues = np.zeros(tokenizer.vocab_size, dtype=bool)
    continues[inner] = True
    continues[list(special_tokens.values())] = False
    return continues
