"""headway show: a file per sub-command, each a thin shell over a function of `headway.analysis`."""

from headway.cli.help import CommandApp, Sections
from headway.cli.show import (
    attention,
    curves,
    gates,
    lens,
    masks,
    model,
    neighbors,
    positions,
    routing,
    sampling,
    scaling,
    sensitivity,
    tradeoff,
    vectors,
)

app = CommandApp(help="Show what happens inside models and runs, as text and as a plot.")

SUBCOMMANDS: Sections = {
    "Attention": [
        ("attention", "Show which tokens each token attends to, step by step.", attention.attention),
        ("masks", "Show the attention masks, and what each is for.", masks.masks),
        ("scaling", "Show why attention divides its scores by √d.", scaling.scaling),
        ("routing", "Compare a dense layer over a sequence with self-attention.", routing.routing),
    ],
    "Layers and vectors": [
        ("positions", "Show how a model tells positions apart.", positions.positions),
        ("lens", "Show what each layer would predict: the logit lens.", lens.lens),
        ("neighbors", "Show the tokens nearest to a token.", neighbors.neighbors),
        ("vectors", "Show words in the plane, and their queries and keys.", vectors.vectors),
        ("gates", "Show the gates of an LSTM or GRU over a text.", gates.gates),
        ("model", "List the parameters of a model by name and shape.", model.show_model),
        ("sensitivity", "Show how far back predictions depend on the input.", sensitivity.sensitivity),
    ],
    "Sampling": [
        ("sampling", "Show the distribution of the next token after each sampler.", sampling.sampling),
        ("tradeoff", "Show quality against diversity for several settings.", tradeoff.tradeoff),
    ],
    "Training": [
        ("curves", "Show the training curves of one or several runs.", curves.curves),
    ],
}
app.add_sections(SUBCOMMANDS)
