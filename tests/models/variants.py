"""Small models to test the contract on: every part, alone and in combination."""

from itertools import product

import torch

import headway
from headway.models import Model

TINY = {"vocab_size": 41, "context": 24, "d_model": 24, "n_heads": 4, "d_ff": 40, "dropout": 0.0}
POSITIONS = ("sinusoidal", "learned", "per-layer", "relative", "rotary", "alibi")
FEED_FORWARDS = ("relu", "gelu", "gelu-tanh", "swiglu", "relu2")

# Every position encoding with multi-head and grouped-query attention and both norm orders …
GPTS = [
    {"positions": positions, "n_kv_heads": kv, "norm_order": order}
    for positions, kv, order in product(POSITIONS, (4, 2), ("pre", "post"))
]
# … then each other part, once with each norm, and heads whose total width is not d_model.
GPTS += [{"feed_forward": f, "norm": norm} for f, norm in product(FEED_FORWARDS, ("layer", "rms"))]
GPTS += [
    {"bias": False, "tie_embeddings": False, "norm": "rms", "positions": "rotary", "feed_forward": "swiglu"},
    {"d_head": 10, "n_kv_heads": 1, "positions": "rotary"},
    {"d_head": 10, "scale_embeddings": True, "positions": "alibi", "n_heads": 3},
]
# Ablations that keep the contract: only a missing or late mask breaks it.
GPTS += [
    {"positions": "none", "norm": "none"},
    {"residual": "none"},
    {"residual": "none", "norm_order": "post", "attention_scale": "none"},
    {"similarity": "cosine", "positions": "rotary", "n_kv_heads": 2},
]
TRANSFORMERS = [{"positions": p, "norm_order": o} for p, o in product(POSITIONS, ("pre", "post"))]
TRANSFORMERS += [
    {"n_kv_heads": 2, "norm": "rms", "feed_forward": "swiglu", "bias": False},
    {"tie_embeddings": False, "feed_forward": "relu2", "n_encoder_layers": 1, "n_decoder_layers": 3},
    {"positions": "none", "similarity": "cosine", "attention_scale": "none"},
    {"residual": "none"},
]


SMALL = {"vocab_size": 41, "d_model": 12, "d_hidden": 16}
RNNS = [{"cell": cell, "n_layers": 2} for cell in ("tanh", "relu", "sigmoid", "lstm", "gru", "peephole")]
RNNS += [{"cell": "lstm", "n_layers": 3, "tie_embeddings": True}]
NPLMS = [{"order": 2}, {"order": 4}, {"order": 3, "direct": True}]


SEQ2SEQS = [{"n_layers": 2}, {"n_layers": 1, "cell": "gru", "reverse_source": False, "tie_embeddings": True}]
BAHDANAUS = [{"d_hidden": 10, "d_out": 7}, {"d_hidden": 9, "cell": "lstm", "tie_embeddings": True}]
BAHDANAUS += [{"d_hidden": 8, "n_encoder_layers": 2}]


def name(config: dict) -> str:
    return "-".join(f"{k}={v}" for k, v in config.items())


def amplified(model: Model) -> Model:
    """Set weights large enough that every part matters: at N(0, 0.02) a missing bias or position could go unnoticed."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=0.2)
        else:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    return model.eval()


def gpt(**config) -> Model:
    return amplified(headway.create("gpt", **{**TINY, "n_layers": 2, **config}))


def transformer(**config) -> Model:
    return amplified(headway.create("transformer", **{**TINY, "n_layers": 2, **config}))


class WithSource:
    """An encoder-decoder with a fixed source: called like a decoder, so one set of tests serves both."""

    def __init__(self, model: Model, source: torch.Tensor, mask: torch.Tensor | None):
        self.model, self.source, self.mask, self.config = model, source, mask, model.config

    def __call__(self, ids, lengths=None, rows=slice(None)):
        mask = None if self.mask is None else self.mask[rows]
        return self.model(ids, lengths, source=self.source[rows], source_mask=mask)

    def start(self, batch_size, capacity=None, rows=slice(None)):
        mask = None if self.mask is None else self.mask[rows]
        return self.model.start(capacity=capacity, source=self.source[rows], source_mask=mask)

    def step(self, *args, **kwargs):
        return self.model.step(*args, **kwargs)


class Plain(WithSource):
    """A decoder, called like `WithSource`."""

    def __init__(self, model: Model):
        self.model, self.config = model, model.config

    def __call__(self, ids, lengths=None, rows=slice(None)):
        return self.model(ids, lengths)

    def start(self, batch_size, capacity=None, rows=slice(None)):
        return self.model.start(batch_size, capacity)


N_ROWS = 4


def cases() -> list:
    """Every variant of every generative model, as (name, function that builds it); names start with the family."""
    variants = [(f"gpt {name(c)}", lambda c=c: Plain(gpt(**c))) for c in GPTS]
    variants += [(f"transformer {name(c)}", lambda c=c: _with_source(transformer(**c))) for c in TRANSFORMERS]
    variants += [(f"rnn {name(c)}", lambda c=c: Plain(amplified(headway.create("rnn", **SMALL, **c)))) for c in RNNS]
    variants += [(f"seq2seq {name(c)}", lambda c=c: _with_source(_small("seq2seq", **c))) for c in SEQ2SEQS]
    variants += [(f"bahdanau {name(c)}", lambda c=c: _with_source(_small("bahdanau", **c))) for c in BAHDANAUS]
    variants += [(f"nplm {name(c)}", lambda c=c: Plain(amplified(headway.create("nplm", **SMALL, **c)))) for c in NPLMS]
    variants += [(f"ngram order={n}", lambda n=n: Plain(_fitted_ngram(n))) for n in (1, 2, 3, 4)]
    return variants


def _small(family: str, **config) -> Model:
    return amplified(headway.create(family, vocab_size=41, d_model=12, context=24, **config))


def _with_source(model: Model) -> WithSource:
    rng = torch.Generator().manual_seed(5)
    source = torch.randint(41, (N_ROWS, 7), generator=rng)
    mask = torch.arange(7) < torch.tensor([7, 3, 1, 5])[:, None]
    return WithSource(model, source, mask)


def _fitted_ngram(order: int) -> Model:
    model = headway.create("ngram", vocab_size=41, order=order)
    rng = torch.Generator().manual_seed(6)
    return model.fit((torch.randint(41, (400,), generator=rng) * torch.rand(400, generator=rng)).long())
