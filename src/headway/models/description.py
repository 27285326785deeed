"""A model in a few words: "12 layers, 768 wide", "124.4M parameters"."""

from headway.errors import count


def describe_shape(config: object) -> list[str]:
    """Depth and width of a config, of whichever family: ["12 layers", "768 wide"]."""
    order, n_layers = getattr(config, "order", None), getattr(config, "n_layers", None)
    n_encoder, n_decoder = getattr(config, "n_encoder_layers", None), getattr(config, "n_decoder_layers", None)
    width = getattr(config, "d_hidden", None) or getattr(config, "d_model", None)
    parts = [f"order {order}"] if order is not None else []
    if n_encoder is not None and n_decoder is not None:
        parts.append(f"{n_encoder} + {n_decoder} layers")
    elif n_encoder is not None:
        parts.append(count(n_encoder, "encoder layer"))
    elif n_layers is not None:
        parts.append(count(n_layers, "layer"))
    return parts if width is None else [*parts, f"{width} wide"]


def format_count(n: int) -> str:
    """922,752 as it is; from a million on, 124.4M or 1.5B."""
    for unit, letter in ((1e9, "B"), (1e6, "M")):
        if n >= unit:
            return f"{n / unit:.1f}{letter}"
    return f"{n:,}"
