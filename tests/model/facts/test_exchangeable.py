"""Exchangeable globals are those whose entries rows do not tell apart, no others."""

import numpy as np
import pytest
from scipy import special, stats

from numpyro_vips.model.facts.exchangeable import exchangeable_axes

ROW = np.array([0.3, 0.8])
RNG = np.random.default_rng(0)
# Three components in two dimensions, and what else a case has.
VALUES = {
    "weight": np.array([0.2, 0.3, 0.5]),
    "mean": RNG.normal(size=(3, 2)),
    "scale": np.array([0.5, 1.0, 2.0]),
}


def mixture(values):
    density = stats.norm.logpdf(ROW, values["mean"], values["scale"][:, None]).sum(1)
    return special.logsumexp(np.log(values["weight"]) + density)


def with_known_weights(values):
    density = stats.norm.logpdf(ROW, values["mean"], 1.0).sum(1)
    return special.logsumexp(np.log([0.1, 0.3, 0.6]) + density)


def hidden_chain(values):
    ahead = values["first"]
    for x in ROW:
        ahead = (ahead @ values["transitions"]) * stats.norm.pdf(x, values["level"])
    return np.log(ahead.sum())


def network(values):
    hidden = np.tanh(ROW @ values["inner"])
    return stats.norm.logpdf(1.0, hidden @ values["outer"], values["scale"])


def regression(values):
    mean = ROW @ values["slope"]
    return stats.norm.logpdf(1.0, mean, values["scale"])


def of_one_group(values):
    return stats.norm.logpdf(0.5, values["effect"][1], values["scale"])


CASES = {
    "mixture": (mixture, VALUES, {"weight": (0,), "mean": (0,), "scale": (0,)}),
    # The components have other weights, so an exchange of their means is seen.
    "known weights": (with_known_weights, {"mean": VALUES["mean"]}, {}),
    "beside others": (
        lambda values: mixture(values) + values["slope"] @ [0.1, 0.4, 0.7],
        {**VALUES, "slope": RNG.normal(size=3)},
        {"weight": (0,), "mean": (0,), "scale": (0,)},
    ),
    # As many components as dimensions: only one of the axes will do.
    "square": (
        mixture,
        {
            "weight": np.array([0.4, 0.6]),
            "mean": RNG.normal(size=(2, 2)),
            "scale": np.array([0.5, 1.0]),
        },
        {"weight": (0,), "mean": (0,), "scale": (0,)},
    ),
    "hidden chain": (
        hidden_chain,
        {
            "first": RNG.dirichlet(np.ones(3)),
            "transitions": RNG.dirichlet(np.ones(3), size=3),
            "level": RNG.normal(size=3),
        },
        {"first": (0,), "transitions": (0, 1), "level": (0,)},
    ),
    "network": (
        network,
        {
            "inner": RNG.normal(size=(2, 4)),
            "outer": RNG.normal(size=4),
            "scale": np.array(0.7),
        },
        {"inner": (1,), "outer": (0,)},
    ),
    "regression": (
        regression,
        {"slope": RNG.normal(size=2), "scale": np.array(0.7)},
        {},
    ),
    "one group": (
        of_one_group,
        {"effect": RNG.normal(size=4), "scale": np.array(0.7)},
        {},
    ),
    "not finite": (lambda values: float("nan"), VALUES, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_finds_the_axes_that_rows_do_not_tell_apart(name: str):
    density, values, expected = CASES[name]
    assert exchangeable_axes(density, values) == expected


def test_does_not_change_the_values_and_gives_up_after_a_fixed_number_of_trials():
    calls = []

    def density(values):
        calls.append(values)
        return float(len(calls))

    values = {f"w{i}": RNG.normal(size=(3, 3)) for i in range(6)}
    copies = {name: value.copy() for name, value in values.items()}
    assert exchangeable_axes(density, values) == {}
    assert len(calls) <= 65
    for name, value in copies.items():
        np.testing.assert_array_equal(values[name], value)
