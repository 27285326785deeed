"""A dark version of a light picture, for one that takes long to compute again:

    python docs/_ext/dark_picture.py docs/pictures/compare-pydocs.png

writes docs/pictures/compare-pydocs-dark.png. Every pixel is a mixture of white and one colour of the light theme; the
same mixture of the dark theme's background and colour takes its place. If the picture's run is at hand, draw it with
--theme dark instead. With --heat-map the colours are those of the theme's sequential colour map.
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from PIL import Image

from headway.analysis.plotting import THEMES, figure_style

LIGHT, DARK = THEMES["light"], THEMES["dark"]
N_COLOURS = 128  # of the file, which makes it small


def darken(pixels: np.ndarray, is_heat_map: bool = False) -> np.ndarray:
    """Colours (N, 3) between 0 and 1, as the dark theme has them."""
    from_white, background = 1 - pixels, np.array(to_rgb(DARK.background))
    colours = [(LIGHT.text, DARK.text), *([] if is_heat_map else zip(LIGHT.colours, DARK.colours, strict=True))]
    best = np.full(len(pixels), np.inf)
    dark = np.empty_like(pixels)
    for light, new in ((np.array(to_rgb(a)), np.array(to_rgb(b))) for a, b in colours):
        direction = 1 - light
        amount = np.clip(from_white @ direction / (direction @ direction), 0, 1)[:, None]
        distance = ((from_white - amount * direction) ** 2).sum(-1)
        is_better = distance < best
        dark[is_better] = (background + amount * (new - background))[is_better]
        best = np.minimum(best, distance)
    if is_heat_map:
        light_map, dark_map = (colormaps[t.sequential](np.arange(256))[:, :3] for t in (LIGHT, DARK))
        distances = ((pixels[:, None] - light_map) ** 2).sum(-1)
        is_better = distances.min(1) < best
        dark[is_better] = dark_map[distances.argmin(1)[is_better]]
    return dark


def main(files: list[str]) -> None:
    is_heat_map = "--heat-map" in files
    for file in (Path(file) for file in files if file != "--heat-map"):
        picture = np.asarray(Image.open(file).convert("RGB"))
        pixels, index = np.unique(picture.reshape(-1, 3), axis=0, return_inverse=True)
        with figure_style():  # registers the dark colour maps
            new = (darken(pixels / 255, is_heat_map) * 255).round().astype(np.uint8)
        dark = Image.fromarray(new[index.ravel()].reshape(picture.shape))
        dark.quantize(N_COLOURS, dither=Image.Dither.NONE).save(file.with_stem(f"{file.stem}-dark"), optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
