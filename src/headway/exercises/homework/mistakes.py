"""The known mistakes: what each is called, what the output equals with it, and how to repair it.

The keys are those that reference.py plants. Several keys may be one mistake: masks are off by one both ways.
"""

from dataclasses import dataclass

from headway.exercises.homework.reference import MOVED_MASKS, ORDINALS

PLACES = ("self-attention", "cross-attention", "feed-forward")  # of a sublayer in its layer


@dataclass(frozen=True)
class HomeworkMistake:
    """`finding` says what your output equals; `remedy` says what to do."""

    name: str
    finding: str
    remedy: str


def _off_by_one(finding: str) -> HomeworkMistake:
    remedy = "Row t of the mask is True for columns 0 … t: the lower triangle with the diagonal."
    return HomeworkMistake("mask off by one", finding, remedy)


def _wrong_axis(axis: str) -> HomeworkMistake:
    return HomeworkMistake(
        "softmax over the wrong axis",
        f"your weights sum to 1 over {axis}",
        "Each query's weights sum to 1 over the keys, the last axis: softmax(dim=-1).",
    )


def _wrong_vocabulary_axis(axis: str) -> HomeworkMistake:
    return HomeworkMistake(
        "softmax over the wrong axis",
        f"your probabilities sum to 1 over {axis} instead of the vocabulary",
        "Each position's probabilities sum to 1 over the vocabulary, the last axis: log_softmax(dim=-1).",
    )


def _shared(matrix: str, head: str) -> HomeworkMistake:
    return HomeworkMistake(
        "shared head weights",
        f"every head uses the {head} head's columns of {matrix}: your heads share weights",
        "Head h has the columns from h K to (h + 1) K of its own.",
    )


def _swapped(finding: str) -> HomeworkMistake:
    remedy = "Row t, column s of the scores is query t times key s: Q Kᵀ."
    return HomeworkMistake("swapped Q and K", finding, remedy)


_SCALE = "Divide the scores by √d_k, d_k = query.size(-1): their variance grows with d_k, and the softmax saturates."
_EMBEDDING = "Multiply the rows of the table by √d_model, so that they match the positions in magnitude (§3.4)."
_POSITION = "The first token has position 0: sin 0 = 0 and cos 0 = 1."
_PRE_NORM = "Normalise the input of the sublayer, and add its output to the unchanged x: x + sublayer(norm(x))."
_MASK = "Set scores that are not visible to −∞ before the softmax, so that the others sum to 1."
_INPUTS = "Apply W^Q to `query`, W^K to `key` and W^V to `value`: they differ in cross-attention."
_CROSS = "Queries come from the decoder's x, keys and values from the memory: cross_attention(x, memory, memory, mask)."

MISTAKES: dict[str, HomeworkMistake] = {
    # The mask
    "mask shifted by 1": _off_by_one("position t attends to t + 1, the token that it is to predict"),
    "mask shifted by -1": _off_by_one("position t does not attend to itself, and the first attends to nothing"),
    "mask shifted by 2": _off_by_one("position t attends to t + 1 and t + 2, which lie in the future"),
    "mask shifted by -2": _off_by_one("position t attends neither to itself nor to t − 1"),
    "mask transposed": HomeworkMistake(
        "mask transposed", "position t attends to t and what follows", "Take the lower triangle, not the upper."
    ),
    "mask inverted": HomeworkMistake(
        "mask inverted", "True and False are exchanged", "True means: may be attended to."
    ),
    # Attention
    "no scale": HomeworkMistake("no scale", "your weights equal those without the division by √d_k", _SCALE),
    "divided by d_k": HomeworkMistake("wrong scale", "you divide by d_k instead of √d_k", _SCALE),
    "divided by √n": HomeworkMistake("wrong scale", "you divide by the root of the number of keys, not of d_k", _SCALE),
    "multiplied by √d_k": HomeworkMistake("wrong scale", "you multiply by √d_k instead of dividing", _SCALE),
    "mask after softmax": HomeworkMistake(
        "mask after softmax", "your weights are masked after the softmax and no longer sum to 1", _MASK
    ),
    "mask ignored": HomeworkMistake("mask ignored", "your weights are those without a mask", _MASK),
    "hidden scores are 0": HomeworkMistake(
        "mask fills with 0",
        "you fill with 0 (or a number near 0), not −∞, or multiply scores by the mask: e⁰ = 1 still gets weight",
        _MASK,
    ),
    "hidden scores are 1e9": HomeworkMistake(
        "mask fills with +∞", "you fill with a large number, not −∞: what is hidden gets all the weight", _MASK
    ),
    "mask inverted in attention": HomeworkMistake(
        "mask inverted", "you mask what may be attended to", "Fill where the mask is False: masked_fill(~mask, −∞)."
    ),
    "softmax over queries": _wrong_axis("the queries: columns instead of rows"),
    "softmax over heads": _wrong_axis("the heads"),
    "softmax over the batch": _wrong_axis("the batch"),
    "softmax over all entries": _wrong_axis("all queries and keys at once"),
    "Q and K swapped": _swapped("your scores are K Qᵀ instead of Q Kᵀ: row s, column t"),
    # Multi-head attention
    "queries from the keys": _swapped("W^Q is applied to `key` and W^K to `query`"),
    "W_Q and W_K swapped": _swapped("W^K is applied to `query` and W^Q to `key`"),
    "queries of `key`": HomeworkMistake("queries from the wrong input", "W^Q is applied to `key`", _INPUTS),
    "keys of `query`": HomeworkMistake("keys from the wrong input", "W^K is applied to `query`", _INPUTS),
    "values of `key`": HomeworkMistake("values from the wrong input", "W^V is applied to `key`", _INPUTS),
    "values from W_K": HomeworkMistake(
        "values projected with W^K", "your values are `value` times W^K", "Use the third matrix, W^V."
    ),
    "one matrix for Q, K and V": HomeworkMistake(
        "shared head weights",
        "queries, keys and values all use W^Q: your heads share one projection",
        "Use the first three matrices, one each.",
    ),
    **{f"every head is the {head}": _shared("Q, K and V", head) for head in ORDINALS},
    **{
        f"every head uses the {head} head's W_{letter}": _shared(letter, head)
        for letter in "QKV"
        for head in ORDINALS
    },
    "heads split without a transpose": HomeworkMistake(
        "heads split wrong",
        "the heads are cut along the positions",
        "First view(B, T, H, K), then transpose(1, 2).",
    ),
    "heads interleaved": HomeworkMistake(
        "heads split wrong", "head h has every H-th column", "Head h has K consecutive columns: view(B, T, H, K)."
    ),
    "heads joined without a transpose": HomeworkMistake(
        "heads joined wrong", "(B, H, T, K) is read as (B, T, D)", "First transpose(1, 2), then flatten(2)."
    ),
    "no output projection": HomeworkMistake(
        "no output projection", "your output is the concatenation of the heads", "Multiply it by W^O, the last matrix."
    ),
    "mask not passed on": HomeworkMistake(
        "mask ignored", "your output is that without a mask", "Pass the mask on, with an axis for the heads."
    ),
    # Inputs and outputs
    "no √d on embeddings": HomeworkMistake(
        "no √d on embeddings", "your vectors are the rows of the table, not scaled", _EMBEDDING
    ),
    "embeddings divided by √d": HomeworkMistake("wrong scale", "you divide embeddings by √d_model", _EMBEDDING),
    "embeddings times d": HomeworkMistake("wrong scale", "you multiply embeddings by d_model", _EMBEDDING),
    "positions from 1": HomeworkMistake(
        "positional encoding off by one", "your positions count from 1: every token gets the next one's", _POSITION
    ),
    "positions from -1": HomeworkMistake(
        "positional encoding off by one", "your positions count from −1: every token gets the previous one's", _POSITION
    ),
    "sines from 1": HomeworkMistake(
        "positional encoding off by one", "your sines count positions from 1, your cosines from 0", _POSITION
    ),
    "cosines from 1": HomeworkMistake(
        "positional encoding off by one", "your cosines count positions from 1, your sines from 0", _POSITION
    ),
    "frequencies off by one": HomeworkMistake(
        "positional encoding off by one",
        "your frequencies are off by one: they begin with that of the second pair",
        "The first pair has 2i = 0 and frequency 1.",
    ),
    "exponent 2i + 1": HomeworkMistake(
        "positional encoding off by one",
        "your exponents are off by one: (2i + 1)/d instead of 2i/d",
        "The first pair has 2i = 0 and frequency 1.",
    ),
    "exponent i instead of 2i": HomeworkMistake(
        "wrong frequencies", "your exponent is i/d instead of 2i/d", "Pair i has frequency 10000^(−2i/d)."
    ),
    "sine and cosine swapped": HomeworkMistake(
        "sine and cosine swapped", "even columns hold cosines", "Even columns hold sines, odd ones cosines."
    ),
    "sines before cosines": HomeworkMistake(
        "columns not interleaved", "the sines come first, then the cosines", "Column 2i is a sine, 2i + 1 its cosine."
    ),
    "cut along the batch axis": HomeworkMistake(
        "encoding cut along the batch",
        "the table is cut to the batch size instead of the sequence length, as on a slide of the lecture",
        "The positions are axis 1 of x: encoding[: x.size(1)].",
    ),
    "one position per row": HomeworkMistake(
        "encoding cut along the batch",
        "every row of the batch has one position, as on a slide of the lecture",
        "The positions are axis 1 of x: encoding[: x.size(1)].",
    ),
    "embeddings replaced": HomeworkMistake(
        "embeddings replaced", "your output is the encoding alone", "Add the encoding to x."
    ),
    "no encoding": HomeworkMistake("no encoding", "your output is x unchanged", "Add the encoding to x."),
    "no ReLU": HomeworkMistake("no activation", "your output is that without ReLU", "max(0, x W₁ + b₁) W₂ + b₂"),
    "GELU instead of ReLU": HomeworkMistake("GELU for ReLU", "your activation is GELU", "The paper uses ReLU (eq. 2)."),
    "ReLU after W₂": HomeworkMistake("activation too late", "ReLU comes after W₂", "max(0, x W₁ + b₁) W₂ + b₂"),
    "logits instead of log-probabilities": HomeworkMistake(
        "no log-softmax", "you return logits", "Apply log_softmax(dim=-1)."
    ),
    "probabilities instead of log-probabilities": HomeworkMistake(
        "softmax without log", "you return probabilities", "Apply log_softmax(dim=-1)."
    ),
    "log-softmax over positions": _wrong_vocabulary_axis("the positions"),
    "log-softmax over the batch": _wrong_vocabulary_axis("the batch"),
    # Sublayers
    "norm after the residual": HomeworkMistake(
        "norm order", "you normalise after the residual, norm(x + sublayer(x)): post-norm", _PRE_NORM
    ),
    "norm after the sublayer": HomeworkMistake(
        "norm order", "you normalise the sublayer's output instead of its input", _PRE_NORM
    ),
    "norm before and after": HomeworkMistake(
        "norm order", "you normalise once more after the residual, norm(x + sublayer(norm(x)))", _PRE_NORM
    ),
    "norm on the residual path": HomeworkMistake(
        "norm order", "you add the sublayer's output to norm(x) instead of x", _PRE_NORM
    ),
    "no residual": HomeworkMistake("missing residual", "you return the sublayer's output without adding x", _PRE_NORM),
    "only the residual normalised": HomeworkMistake(
        "norm order", "you normalise x where it is added, not where the sublayer reads it", _PRE_NORM
    ),
    "no residual, no norm": HomeworkMistake(
        "missing residual", "you return sublayer(x): x is neither normalised nor added", _PRE_NORM
    ),
    "no residual, norm after": HomeworkMistake(
        "missing residual", "you return norm(sublayer(x)): x is not added, and the norm comes last", _PRE_NORM
    ),
    "no norm": HomeworkMistake("no norm", "you add the sublayer of x itself, not normalised", _PRE_NORM),
    "standard deviation with D − 1": HomeworkMistake(
        "unbiased variance", "your norm divides by √(Σ(x − mean)² / (D − 1))", "Use nn.LayerNorm, which divides by D."
    ),
    # Layers and stacks
    "source mask not passed on": HomeworkMistake(
        "source mask ignored", "your output is that without the source mask", "Pass the mask to attention."
    ),
    "target mask not passed on": HomeworkMistake(
        "target mask ignored", "your output is that without the target mask: it sees what it predicts",
        "Pass target_mask to self-attention.",
    ),
    "masks exchanged": HomeworkMistake(
        "masks exchanged", "self-attention gets the source mask and cross-attention the target mask",
        "Self-attention takes target_mask, cross-attention source_mask.",
    ),
    "feed-forward first": HomeworkMistake(
        "sublayers in the wrong order", "the feed-forward network comes first", "First self-attention."
    ),
    "cross-attention first": HomeworkMistake(
        "sublayers in the wrong order", "cross-attention comes first", "First self-attention."
    ),
    "one norm for all sublayers": HomeworkMistake(
        "shared norm", "all sublayers use the first one's norm", "Each sublayer has a connection of its own."
    ),
    "queries from the memory": _swapped("cross-attention takes its queries from the memory and its keys from x"),
    "memory and target exchanged": _swapped("cross-attention takes queries from the memory, keys and values from x"),
    "keys from the target": HomeworkMistake("wrong keys", "cross-attention takes its keys from x", _CROSS),
    "cross-attention to the target": HomeworkMistake(
        "no cross-attention", "cross-attention attends to x, not to the memory", _CROSS
    ),
    "layers share weights": HomeworkMistake(
        "shared layer weights", "every layer is the first one", "Run the input through all copies in turn."
    ),
    "one layer only": HomeworkMistake("one layer only", "only the first layer runs", "Run x through all layers."),
    "no last norm": HomeworkMistake(
        "no last norm", "you return the residual stream unnormalised", "A pre-norm stack ends with a norm."
    ),
    "norm before the layers": HomeworkMistake(
        "norm order", "the norm comes before the layers, not after the last", "A pre-norm stack ends with a norm."
    ),
    "no causal mask": HomeworkMistake(
        "no causal mask", "without a target mask your model sees what it predicts", "Default to causal_mask(T)."
    ),
}  # fmt: skip

# The mask is right, but moved by one where it is used: in attention, or by a layer that passes it on.
# A source mask has one row for all queries.
_AS_IT_IS = "Use the mask as it is: row t, column s says whether query t may attend to key s."
MOVED_SOURCE_MASKS = tuple(f"source {key}" for key in MOVED_MASKS if "key" in key)
MOVED_TARGET_MASKS = tuple(f"target {key}" for key in MOVED_MASKS)
MISTAKES |= {
    key: HomeworkMistake("mask off by one", f"you use the {key.replace('-1', '−1')}", _AS_IT_IS)
    for key in (*MOVED_MASKS, *MOVED_SOURCE_MASKS, *MOVED_TARGET_MASKS)
}

MISTAKES |= {
    f"no √d on embeddings, {side}": HomeworkMistake(
        "no √d on embeddings", f"the vectors of the {side} are the rows of the table, not scaled", _EMBEDDING
    )
    for side in ("source", "target")
}

# The same mistake in one sublayer of a layer only.
SUBLAYER_MISTAKES = (
    "no residual",
    "norm after the residual",
    "norm after the sublayer",
    "norm before and after",
    "norm on the residual path",
    "only the residual normalised",
    "no residual, norm after",
    "no residual, no norm",
    "no norm",
)
MISTAKES |= {
    f"{mistake}, {place}": HomeworkMistake(
        MISTAKES[mistake].name, f"around {place} {MISTAKES[mistake].finding}", MISTAKES[mistake].remedy
    )
    for mistake in SUBLAYER_MISTAKES
    for place in PLACES
}
