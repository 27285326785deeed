"""Flat names of all settings, as flags and keyword arguments have them: top_k, dry_multiplier, xtc_probability, …"""

from headway.sampling.stages import SAMPLERS

# A stage's strength has the stage's name, except where the stage has several parameters of equal rank.
OWN_NAME = {
    "logit_bias": "bias",
    "no_repeat_ngram": "n",
    "min_new_tokens": "min_new",
    "repetition_penalty": "penalty",
    "frequency_penalty": "penalty",
    "presence_penalty": "penalty",
    "top_n_sigma": "n",
    "top_k": "k",
    "typical": "p",
    "tail_free": "z",
    "top_a": "a",
    "eta_cutoff": "epsilon",
    "epsilon_cutoff": "epsilon",
    "top_p": "p",
    "min_p": "p",
    "temperature": "temperature",
}


def flat_name(stage: str, parameter: str) -> str:
    """`top_k` for top_k's k, `dry_multiplier` for dry's multiplier, `repetition_window` for a penalty's window."""
    if OWN_NAME.get(stage) == parameter:
        return stage
    return f"{stage.removesuffix('_penalty')}_{parameter}"


FLAT: dict[str, tuple[str, str]] = {
    flat_name(name, parameter): (name, parameter) for name, stage in SAMPLERS.items() for parameter in stage.parameters
}
