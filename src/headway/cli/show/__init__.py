"""headway show: a file per sub-command, each a thin shell over a function of `headway.analysis`."""

from headway.cli.help import CommandApp, Sections

app = CommandApp(help="Show what happens inside models and runs, as text and as a plot.")

SUBCOMMANDS: Sections = {
    "Attention": [
        ("attention", "Show which tokens each token attends to, step by step.", "attention"),
        ("masks", "Show the attention masks, and what each is for.", "masks"),
        ("scaling", "Show why attention divides its scores by √d.", "scaling"),
        ("routing", "Compare a dense layer over a sequence with self-attention.", "routing"),
    ],
    "Layers and vectors": [
        ("positions", "Show how a model tells positions apart.", "positions"),
        ("lens", "Show what each layer would predict: the logit lens.", "lens"),
        ("neighbors", "Show the tokens nearest to a token.", "neighbors"),
        ("vectors", "Show words in the plane, and their queries and keys.", "vectors"),
        ("gates", "Show the gates of an LSTM or GRU over a text.", "gates"),
        ("model", "List the parameters of a model by name and shape.", "model"),
        ("sensitivity", "Show how far back predictions depend on the input.", "sensitivity"),
    ],
    "Sampling": [
        ("sampling", "Show the distribution of the next token after each sampler.", "sampling"),
        ("tradeoff", "Show quality against diversity for several settings.", "tradeoff"),
    ],
    "Training": [
        ("curves", "Show the training curves of one or several runs.", "curves"),
    ],
}
app.add_sections(SUBCOMMANDS, package=__name__)
