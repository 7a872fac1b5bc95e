"""How far might a score be off, had other items been asked? Percentile intervals over resampled items, and
Wilson's for plain shares.

Sources: Efron & Tibshirani, An Introduction to the Bootstrap (1993), chapter 13; Wilson, Probable inference,
the law of succession, and statistical inference (1927).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

LEVEL, DRAWS = 0.95, 10_000
Z95 = 1.96  # half the width of a 95 % interval, in standard errors
_AT_ONCE = 2**22  # numbers of one block of resampled counts


class Interval(NamedTuple):
    """A value and its interval; all three NaN where there is no signal."""

    value: float
    low: float
    high: float


def bootstrap(
    scores: ArrayLike,
    statistic: Callable[[np.ndarray], np.ndarray] = lambda means: means[..., 0],
    draws: int = DRAWS,
    seed: int = 0,
    level: float = LEVEL,
) -> Interval:
    """A statistic of mean scores, with its percentile interval over resampled items.

    Items are drawn with replacement, and all columns of an item stay together: the resampling is paired.

    Args:
        scores: one row an item, one column a system [items, columns], or [items].
        statistic: from means [..., columns] to values [...].

    Raises:
        ValueError: no items, a score that is missing, fewer than 2 draws, or a level outside (0, 1).
    """
    table = _table(scores, draws, level)
    resampled = resampled_means(table, draws, np.random.default_rng(seed))
    return interval(statistic(table.mean(0)), statistic(resampled), level)


def wilson(share: ArrayLike, n: ArrayLike) -> Interval:
    """A share of n items with its 95 % interval, which is honest at 0 and 1 too.

    Args:
        share: in [0, 1]. n: items, also a number that is not whole; numbers, or arrays of one shape.

    Returns:
        Numbers for numbers, arrays for arrays.

    Raises:
        ValueError: no items, or no share.
    """
    share, n = np.asarray(share, np.float64), np.asarray(n, np.float64)
    if not ((n > 0) & (share >= 0) & (share <= 1)).all():
        raise ValueError(f"need a share in [0, 1] of at least one item: got {share} of {n}.")
    middle, widen = share + Z95**2 / (2 * n), 1 + Z95**2 / n
    half = Z95 * np.sqrt(share * (1 - share) / n + Z95**2 / (4 * n**2))
    low, high = np.clip((middle - half) / widen, 0, share), np.clip((middle + half) / widen, share, 1)
    found = Interval(share, np.where(share == 0, 0.0, low), np.where(share == 1, 1.0, high))
    return found if share.ndim or n.ndim else Interval(*map(float, found))


def interval(value: float, resampled: np.ndarray, level: float = LEVEL) -> Interval:
    """A value with the quantiles of its resampled values [draws] that leave (1 − level)/2 at each end."""
    ends = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    return Interval(float(value), float(ends[0]), float(ends[1]))


def ratio_above(floor: float) -> Callable[[np.ndarray], np.ndarray]:
    """Means [..., (student, teacher)] to their ratio above `floor`; ±inf where the teacher is not above."""

    def ratio(means: np.ndarray) -> np.ndarray:
        student, teacher = means[..., 0] - floor, means[..., 1] - floor
        safe = np.where(teacher > 0, teacher, 1.0)
        return np.where(teacher > 0, student / safe, np.where(student > 0, np.inf, -np.inf))

    return ratio


def _table(scores: ArrayLike, draws: int, level: float) -> np.ndarray:
    table = np.asarray(scores, np.float64)
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or not table.shape[0] or np.isnan(table).any():
        raise ValueError("scores must be one row an item, at least one, and none missing (NaN).")
    if draws < 2 or not 0 < level < 1:
        raise ValueError(
            f"an interval needs 2 draws and a level between 0 and 1: got {draws} draws, level {level}."
        )
    return table


def resampled_means(table: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Means [draws, columns] of resampled items [items, columns].

    Equal items are drawn together: the same distribution, faster. Blocks bound the memory.
    """
    rows, counts = np.unique(table, axis=0, return_counts=True)
    share, block = counts / len(table), max(1, _AT_ONCE // len(rows))
    sizes = [min(block, draws - start) for start in range(0, draws, block)]
    return np.concatenate([rng.multinomial(len(table), share, size) @ rows for size in sizes]) / len(table)
