"""What the shell completes after Tab: recipes, runs, presets and settings. `headway --install-completion` turns it on.

Nothing here imports torch, so that completion is instant.
"""

from collections.abc import Iterator

from headway.runs import RUNS_FOLDER, Run


def complete_recipe(incomplete: str) -> list[str]:
    """Shipped recipes, and runs."""
    from headway.config import RECIPES

    names = [*sorted(file.stem for file in RECIPES.glob("*.toml")), *_runs()]
    return [name for name in names if name.startswith(incomplete)]


def complete_run(incomplete: str) -> list[str]:
    """Runs, which are models too."""
    return [name for name in _runs() if name.startswith(incomplete)]


def complete_model(incomplete: str) -> list[str]:
    """Families, presets, recipes and runs."""
    from headway.config import FAMILIES
    from headway.config.presets import PRESETS

    return [name for name in [*FAMILIES, *PRESETS, *complete_recipe("")] if name.startswith(incomplete)]


def complete_setting(incomplete: str) -> list[str]:
    """Settings of a recipe, ready for their value: train.steps=. After model.name=, the presets."""
    from headway.cli.unknown_options import recipe_settings
    from headway.config.presets import PRESETS

    if incomplete.startswith("model.name="):
        return [f"model.name={name}" for name in PRESETS if f"model.name={name}".startswith(incomplete)]
    return [f"{setting}=" for setting in recipe_settings() if setting.startswith(incomplete)]


def complete_sampler_setting(incomplete: str) -> list[str]:
    """Settings of samplers, ready for their value: top_k=."""
    from headway.cli.unknown_options import sampler_settings

    return sorted(f"{setting}=" for setting in sampler_settings() if setting.startswith(incomplete))


def _runs() -> Iterator[str]:
    yield from sorted(str(folder) for folder in RUNS_FOLDER.glob("*") if Run.exists(folder))
