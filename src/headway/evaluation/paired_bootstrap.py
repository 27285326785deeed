"""Is one system better than another, or may the difference be chance? Paired bootstrap (Koehn 2004).

Both systems are scored on the same examples, drawn with replacement, a thousand times. The p-value says how often
resampling alone moves the difference of the scores by as much as the difference that was observed: the differences are
centred at their mean, as in sacreBLEU.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headway.errors import InputError
from headway.evaluation.metrics import PairedBootstrapResult

SEED = 12345
DRAWS_PER_CHUNK = 50  # bounds the memory of the counts (draws, examples)


class ResampledScore(Protocol):
    """The score of a system as a function of sums over examples, so that any resample can be scored."""

    @property
    def statistic_name(self) -> str: ...

    @property
    def statistics(self) -> NDArray[Any]:
        """Numbers of each example (N, k)."""
        ...

    def statistic(self, sums: NDArray[Any]) -> Any:
        """The score from sums of `statistics` over examples (…, k) → (…)."""
        ...


def paired_bootstrap(first: ResampledScore, second: ResampledScore, *, samples: int = 1000) -> PairedBootstrapResult:
    """Compare two systems that were scored on the same examples, in the same order. The seed is fixed."""
    statistics = [np.asarray(system.statistics, dtype=np.float64) for system in (first, second)]
    sizes = [len(rows) for rows in statistics]
    if sizes[0] != sizes[1] or not sizes[0] or first.statistic_name != second.statistic_name:
        raise InputError(
            f"two systems are compared on the same examples by the same score, not {sizes[0]:,} by "
            f"{first.statistic_name} and {sizes[1]:,} by {second.statistic_name}"
        )
    scores = [float(s.statistic(rows.sum(axis=0))) for s, rows in zip((first, second), statistics, strict=True)]
    rng, n = np.random.default_rng(SEED), sizes[0]
    draws: list[list[NDArray[Any]]] = [[], []]
    for start in range(0, samples, DRAWS_PER_CHUNK):
        n_draws = min(DRAWS_PER_CHUNK, samples - start)
        counts = rng.multinomial(n, np.full(n, 1 / n), size=n_draws)  # (draws, N) how often each example is drawn
        for system, rows, values in zip((first, second), statistics, draws, strict=True):
            values.append(system.statistic(counts @ rows))
    resampled = [np.concatenate(values) for values in draws]
    differences = resampled[0] - resampled[1]
    is_extreme = np.abs(differences - differences.mean()) >= abs(scores[0] - scores[1]) - 1e-12
    half_widths = [float(np.subtract(*np.quantile(values, [0.975, 0.025])) / 2) for values in resampled]
    return PairedBootstrapResult(
        name=first.statistic_name,
        first=scores[0],
        second=scores[1],
        p=1.0 if scores[0] == scores[1] else float((is_extreme.sum() + 1) / (samples + 1)),
        ci_half_widths=(half_widths[0], half_widths[1]),
        signature=f"bs:{samples}|seed:{SEED}|n:{n}",
    )
