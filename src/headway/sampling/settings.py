"""Flat names of all settings, as flags and keyword arguments have them: top_k, dry_multiplier, xtc_probability, …"""

from headway.sampling.parameters import flat_name
from headway.sampling.samplers import SAMPLERS

FLAT: dict[str, tuple[str, str]] = {
    flat_name(name, parameter): (name, parameter) for name, stage in SAMPLERS.items() for parameter in stage.parameters
}
