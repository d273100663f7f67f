"""Sources of synthetic rows for tables of models, one function per kind of data."""

import numpy as np

Rows = tuple[np.ndarray, ...]


def numbers(rng: np.random.Generator, n: int) -> Rows:
    return (rng.normal(1.5, 0.7, n),)


def points(rng: np.random.Generator, n: int) -> Rows:
    return (rng.normal(size=(n, 3)),)


def waits(rng: np.random.Generator, n: int) -> Rows:
    return (rng.exponential(1.0, n) + 0.01,)


def fractions(rng: np.random.Generator, n: int) -> Rows:
    return (rng.beta(2.0, 3.0, n),)


def counts(rng: np.random.Generator, n: int) -> Rows:
    return (rng.poisson(3.0, n).astype(float),)


def coins(rng: np.random.Generator, n: int) -> Rows:
    return ((rng.random(n) < 0.4).astype(float),)


def answers(rng: np.random.Generator, n: int) -> Rows:
    return ((rng.random((n, 5)) < 0.4).astype(float),)


def letters(rng: np.random.Generator, n: int) -> Rows:
    return (rng.integers(0, 4, n),)


def words(rng: np.random.Generator, n: int) -> Rows:
    return (rng.integers(0, 4, (n, 5)),)


def bags(rng: np.random.Generator, n: int) -> Rows:
    return (rng.multinomial(10, np.ones(4) / 4, n).astype(float),)


def linear(rng: np.random.Generator, n: int) -> Rows:
    X = rng.normal(size=(n, 3))
    return X, X @ [1.0, -2.0, 0.5] + 0.3 * rng.normal(size=n)


def binary(rng: np.random.Generator, n: int) -> Rows:
    X = rng.normal(size=(n, 3))
    p = 1 / (1 + np.exp(-X @ [1.0, -2.0, 0.5]))
    return X, (rng.random(n) < p).astype(float)


def count_regression(rng: np.random.Generator, n: int) -> Rows:
    return rng.normal(size=(n, 3)), rng.poisson(3.0, n).astype(float)


def labelled(rng: np.random.Generator, n: int) -> Rows:
    return rng.normal(size=(n, 3)), rng.integers(0, 4, n)


def grouped(rng: np.random.Generator, n: int) -> Rows:
    return rng.normal(size=n), rng.normal(size=n), rng.integers(0, 4, n)


def grouped_twice(rng: np.random.Generator, n: int) -> Rows:
    return (*grouped(rng, n), rng.integers(0, 3, n))


def by_group(rng: np.random.Generator, n: int) -> Rows:
    return rng.normal(size=n), rng.integers(0, 3, n)


def games(rng: np.random.Generator, n: int) -> Rows:
    first = rng.integers(0, 4, n)
    return first, rng.integers(0, 4, n), (rng.random(n) < 0.5).astype(float)


def annotations(rng: np.random.Generator, n: int) -> Rows:
    return rng.integers(0, 3, (n, 4)), rng.integers(0, 5, (n, 4))


def events(rng: np.random.Generator, n: int) -> Rows:
    return rng.exponential(1.0, n), rng.random(n) < 0.5


# --- rows that a model of theirs made, with parameters that it can find again ---------


def rare_coins(rng: np.random.Generator, n: int) -> Rows:
    return ((rng.random(n) < 0.3).astype(float),)


def short_waits(rng: np.random.Generator, n: int) -> Rows:
    return (rng.exponential(0.4, n),)


def regression(rng: np.random.Generator, n: int) -> Rows:
    features = rng.normal(size=(n, 3))
    return features, features @ [1.0, -2.0, 0.5] + 0.4 + 0.5 * rng.normal(size=n)


def logistic_labels(rng: np.random.Generator, n: int) -> Rows:
    features = rng.normal(size=(n, 3))
    logits = features @ [1.0, -2.0, 0.5] + 0.4
    return features, (rng.random(n) < 1 / (1 + np.exp(-logits))).astype(float)


def clusters(rng: np.random.Generator, n: int) -> Rows:
    centres = np.array([[-3.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    return (centres[rng.integers(0, 3, n)] + 0.5 * rng.normal(size=(n, 2)),)


def documents(rng: np.random.Generator, n: int) -> Rows:
    return (rng.integers(0, 6, (n, 5)),)


def feature_and_count(rng: np.random.Generator, n: int) -> Rows:
    return rng.normal(size=n), rng.poisson(3.0, n).astype(float)
