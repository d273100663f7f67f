"""Generated tables with fixed seeds: ten linear regressions, five logistic ones.

The bounds that stand beside a table are known in advance, and a row that would not keep
them is moved to the nearest that does. The same tables are made in every run.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

# Rows that errors are averaged over; a fit never sees them.
TEST_ROWS = 20_000
# How far coordinates of unit variance are known to reach, in each of d directions at
# once, and how far a response of unit variance.
REACH, RESPONSE = 1.5, 4.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regression:
    """A linear regression whose true coefficients are known.

    Attributes:
      X, y: Rows of norm `row_norm` at most, responses of size `response` at most.
      test: Further rows, to average errors over.
      coefficients: What the responses were made with.
    """

    X: np.ndarray
    y: np.ndarray
    test: np.ndarray
    coefficients: np.ndarray
    row_norm: float
    response: float

    def excess(self, estimate: np.ndarray) -> float:
        """Mean squared error of predictions beyond that of the true coefficients."""
        return float(np.mean((self.test @ (estimate - self.coefficients)) ** 2))


Draw = Callable[[np.random.Generator, int, int], np.ndarray]


def _independent(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    return rng.normal(size=(n, d))


def _correlated(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Neighbouring columns have the correlation 0.9."""
    X = rng.normal(size=(n, d))
    for j in range(1, d):
        X[:, j] = 0.9 * X[:, j - 1] + np.sqrt(1 - 0.9**2) * X[:, j]
    return X


def _decaying(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Along random axes, with variances that fall from 1 to 1e-3 of the largest."""
    axes = np.linalg.qr(np.random.default_rng(d).normal(size=(d, d)))[0]
    deviations = np.geomspace(1.0, 10**-1.5, d)
    X = (rng.normal(size=(n, d)) * deviations) @ axes.T
    return X * np.sqrt(d / np.sum(deviations**2))


def _unequal(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Columns whose sizes span a factor of ten."""
    sizes = np.geomspace(1.0, 0.1, d)
    return rng.normal(size=(n, d)) * sizes * np.sqrt(d / np.sum(sizes**2))


def _heavy(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Student's t with three degrees of freedom, of unit variance."""
    return rng.standard_t(3, size=(n, d)) / np.sqrt(3)


def _indicators(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """An intercept, ten columns in [-1, 1], and rare indicators of equal variance."""
    X = np.ones((n, d))
    X[:, 1:11] = rng.uniform(-1, 1, size=(n, 10))
    rates = np.geomspace(0.3, 0.01, d - 11)
    X[:, 11:] = rng.uniform(size=(n, d - 11)) < rates
    return X


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Recipe:
    rows: int
    columns: int
    draw: Draw
    explained: float = 0.5
    heavy_noise: bool = False


_REGRESSIONS = {
    "few rows": _Recipe(rows=1_000, columns=3, draw=_independent),
    "few rows, ten columns": _Recipe(rows=2_000, columns=10, draw=_independent),
    "independent": _Recipe(rows=10_000, columns=10, draw=_independent),
    "ill conditioned": _Recipe(rows=20_000, columns=10, draw=_decaying),
    "unequal columns": _Recipe(rows=50_000, columns=20, draw=_unequal),
    "heavy tails": _Recipe(rows=30_000, columns=10, draw=_heavy, heavy_noise=True),
    "correlated": _Recipe(rows=50_000, columns=30, draw=_correlated),
    "weak signal": _Recipe(rows=50_000, columns=30, draw=_independent, explained=0.05),
    "indicators": _Recipe(rows=200_000, columns=100, draw=_indicators),
    "many rows": _Recipe(rows=1_000_000, columns=50, draw=_decaying, heavy_noise=True),
}
REGRESSIONS = tuple(_REGRESSIONS)


def regression(name: str) -> Regression:
    """One of `REGRESSIONS`; the response has about unit variance."""
    recipe = _REGRESSIONS[name]
    n, d = recipe.rows, recipe.columns
    rng = np.random.default_rng([REGRESSIONS.index(name), n, d])
    row_norm = REACH * np.sqrt(d)
    X = _within(recipe.draw(rng, n, d), row_norm)
    test = _within(recipe.draw(rng, TEST_ROWS, d), row_norm)
    coefficients = rng.normal(size=d)
    coefficients *= np.sqrt(recipe.explained) / np.std(test @ coefficients)
    noise = _heavy(rng, n, 1)[:, 0] if recipe.heavy_noise else rng.normal(size=n)
    y = X @ coefficients + np.sqrt(1 - recipe.explained) * noise
    return Regression(
        X=X.astype(np.float32),
        y=np.clip(y, -RESPONSE, RESPONSE).astype(np.float32),
        test=test,
        coefficients=coefficients,
        row_norm=float(row_norm),
        response=RESPONSE,
    )


def _within(X: np.ndarray, norm: float) -> np.ndarray:
    # Single precision may round a row up to beyond its norm.
    norm = norm * (1 - 1e-6)
    lengths = np.linalg.norm(X, axis=1, keepdims=True)
    return X * np.minimum(1.0, norm / lengths)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogisticTable:
    """Rows of norm 1 with 0/1 labels, to train on and to test on."""

    X: np.ndarray
    y: np.ndarray
    test_X: np.ndarray
    test_y: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Shape:
    """A table of numbers and of categories as indicators.

    Attributes:
      rows, columns: Of the table; the last column is an intercept.
      categories: How many categories each categorical column has.
      positive: Share of the rows whose label is 1.
      strength: Standard deviation of the logits.
    """

    rows: int
    columns: int
    categories: tuple[int, ...]
    positive: float
    strength: float


_SHAPES = {
    "like Adult": _Shape(
        rows=39_073,
        columns=109,
        categories=(9, 16, 7, 15, 6, 5, 2, 42),
        positive=0.24,
        strength=2.4,
    ),
    "like A": _Shape(
        rows=32_950,
        columns=89,
        categories=(12, 4, 8, 3, 3, 3, 2, 10, 5, 26),
        positive=0.11,
        strength=1.2,
    ),
    "like B": _Shape(
        rows=24_000,
        columns=92,
        categories=(2, 7, 4, 11, 11, 11, 10, 10, 11),
        positive=0.22,
        strength=1.1,
    ),
    "like C": _Shape(
        rows=56_000, columns=20, categories=(2, 3), positive=0.5, strength=1.3
    ),
    "like D": _Shape(
        rows=255_836, columns=51, categories=(13, 5, 6, 4), positive=0.09, strength=1.6
    ),
}
LOGISTIC_TABLES = tuple(_SHAPES)


def logistic_table(name: str) -> LogisticTable:
    """One of `LOGISTIC_TABLES`."""
    shape = _SHAPES[name]
    rng = np.random.default_rng([LOGISTIC_TABLES.index(name), shape.rows])
    n = shape.rows + TEST_ROWS
    columns = []
    for size in shape.categories:
        # Of categories few are common and many are rare.
        shares = np.arange(1, size + 1) ** -1.5
        found = rng.choice(size, size=n, p=shares / shares.sum())
        columns.append(found[:, None] == np.arange(size))
    num_numbers = shape.columns - 1 - sum(shape.categories)
    latent = rng.normal(size=(n, 3)) @ rng.normal(size=(3, num_numbers))
    numbers = 0.7 * latent / np.sqrt(3) + 0.7 * rng.normal(size=(n, num_numbers))
    # Into [0, 1], as by ranges known in advance.
    columns.append(np.clip(0.5 + numbers / 6, 0, 1))
    X = np.concatenate([*columns, np.ones((n, 1))], axis=1).astype(np.float64)
    # A category, rare or not, moves the logit about as far as a number from its least
    # third to its largest.
    sizes = np.where(np.arange(shape.columns) < sum(shape.categories), 1.0, 3.0)
    logits = X @ (rng.normal(size=shape.columns) * sizes)
    logits = shape.strength * (logits - logits.mean()) / logits.std()
    logits += _intercept(logits, shape.positive)
    y = rng.uniform(size=n) < 1 / (1 + np.exp(-logits))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    X, y = X.astype(np.float32), y.astype(np.int32)
    return LogisticTable(
        X=X[TEST_ROWS:],
        y=y[TEST_ROWS:],
        test_X=X[:TEST_ROWS],
        test_y=y[:TEST_ROWS],
    )


def _intercept(logits: np.ndarray, positive: float) -> float:
    """What to add to logits so that this share of labels is 1."""
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        share = np.mean(1 / (1 + np.exp(-logits - middle)))
        low, high = (middle, high) if share < positive else (low, middle)
    return low
