"""What is said of a program follows from what is in it and from what was found."""

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _models import MODELS, uncertified
from numpyro.distributions import constraints

from numpyro_vips.vips.description import (
    bounds_at,
    describe_site,
    describe_sparse_rows,
    notes_on,
    warnings_of,
)
from numpyro_vips.vips.program.program import ConjugateProgram

QUIET: dict[str, Any] = {
    "moving": [],
    "converged": True,
    "num_steps": 10,
    "drift": {"s": 3.0},
    "change": 0.1,
    "remaining": None,
    "as_good": [],
    "errors_left": None,
    "missing_information": None,
    "below_noise": {},
    "undecided": {},
}


@functools.cache
def program_of(name: str) -> ConjugateProgram:
    return uncertified(MODELS[name].fn, MODELS[name].rows())


def flat(y: Any) -> None:
    m = numpyro.sample("m", dist.ImproperUniform(constraints.real, (), ()))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def two_of_many(y: Any) -> None:
    """Each of twenty measurements of a row is of one of two kinds."""
    m = numpyro.sample("m", dist.Normal(np.array([-1.0, 1.0]), 1.0).to_event(1))
    with numpyro.plate("rows", y.shape[0], dim=-2), numpyro.plate("kinds", 20):
        z = numpyro.sample("z", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(m[z], 1.0), obs=y)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"moving": ["mu"], "converged": False}, "statistics of 'mu' still moved"),
        ({"converged": False, "remaining": 0.3}, "with up to 0.3 posterior sds left"),
        ({"as_good": ["mu"]}, "another posterior of 'mu'"),
        ({"errors_left": 0.5, "missing_information": 0.8}, "80% of the information"),
        ({"converged": None, "missing_information": 0.8}, "order of components"),
        ({"converged": None, "missing_information": 0.8}, "So does engine='dpvi'"),
        ({"below_noise": {"tau": 2}}, "say of 'tau' is below the noise"),
        ({"undecided": {"tau": 0.4}}, "No state of 'tau' is certain"),
    ],
)
def test_each_finding_has_its_sentence(found: dict[str, Any], words: str) -> None:
    (warning,) = warnings_of(program_of("mixture"), QUIET | found)
    assert words in warning


def test_where_nothing_was_found_nothing_is_said() -> None:
    program = program_of("mixture")
    assert list(warnings_of(program, QUIET)) == []
    small = {"errors_left": 0.2, "missing_information": 0.8}
    assert list(warnings_of(program, QUIET | small)) == []


def test_a_flat_prior_is_a_warning_where_noise_may_hide_the_rows() -> None:
    program = uncertified(flat, (np.zeros(4, np.float32),))
    (warning,) = warnings_of(program, QUIET | {"converged": None})
    assert "The prior of 'm' is flat" in warning
    assert list(warnings_of(program, QUIET)) == []
    assert list(notes_on(program, {})) == [warning]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mixture", True),
        ("topics", False),
        ("factor_analysis", False),
        ("logistic_gamma", False),
    ],
)
def test_latents_that_can_be_summed_out_are_a_reason_for_dpvi(
    name: str, expected: bool
) -> None:
    """Shares of topics and real factors are none, nor is what an augmentation adds."""
    notes = " ".join(notes_on(program_of(name), {}))
    assert ("sums over these latents" in notes) == expected


def test_many_latents_of_a_row_are_not_summed_out() -> None:
    notes = " ".join(notes_on(uncertified(two_of_many, (np.zeros((4, 20)),)), {}))
    assert "sums over these latents" not in notes


def test_sites_are_described_by_their_factors_and_bounds() -> None:
    regression = program_of("logistic_intercept")
    assert (
        describe_site(regression, "w")["posterior"]
        == "Normal block of 4 (w, b) [x, xx]"
    )
    assert describe_site(regression, "y")["augmentation"] == ", ".join(
        bounds_at(regression, "y")
    )
    assert len(bounds_at(regression, "y")) == 1
    exact = program_of("gaussian_mean_precision")
    assert describe_site(exact, "tau") == {
        "posterior": "Gamma [log, x]",
        "augmentation": None,
    }


def test_a_global_that_no_row_informs_is_a_hyperparameter() -> None:
    program = program_of("regression_ard")
    roles = {name: describe_site(program, name).get("role") for name in ("alpha", "w")}
    assert roles == {"alpha": "hyper", "w": None}


@pytest.mark.parametrize(
    ("dense", "densified", "words"),
    [
        ({"x": "a slice"}, {}, "made dense again: a slice"),
        ({}, {"x": ("'sort'", "'dot'")}, "on them but for 'sort', 'dot'"),
        ({}, {"x": ()}, ", and all the work is done on them"),
    ],
)
def test_sparse_rows_are_said_to_be_written_out_where_they_are(
    dense: dict[str, str], densified: dict[str, tuple[str, ...]], words: str
) -> None:
    program: Any = SimpleNamespace(dense=dense, densified=densified)
    assert describe_sparse_rows(program, "x").endswith(words)
