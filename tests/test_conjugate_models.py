"""Conjugate models, in the spellings and combinations that strangers come up with.

They are in `_conjugate_*.py`. Every one was judged by hand, by what it means: it is
conjugate, after augmentation at most, and must be compiled to that. Each is compared
with NumPyro's log density on rows with every index, both signs and every label, which
the certificate cannot know of. What must be refused is in `test_refused_models.py`.
"""

import math

import _conjugate_closed_forms
import _conjugate_covariances
import _conjugate_densities
import _conjugate_groups
import _conjugate_latents
import _conjugate_programs
import _conjugate_regressions
import _conjugate_switches
import jax
import numpy as np
import pytest
from _cases import together
from _fits import fit_to
from _full_batch import FullBatch
from _models import graph_of
from _slow import some_fast

from numpyro_vips.vips.compile.certificate import certify, check_rows_are_separate
from numpyro_vips.vips.compile.compiler import compile_model, interpreted

CONJUGATE = together(
    _conjugate_regressions.CASES,
    _conjugate_groups.CASES,
    _conjugate_densities.CASES,
    _conjugate_latents.CASES,
    _conjugate_covariances.CASES,
    _conjugate_programs.CASES,
    _conjugate_switches.CASES,
    _conjugate_closed_forms.CASES,
)

# Between them they take nearly every jump between lines of the compiler that any takes.
FAST = {
    "Chi2",
    "Dirichlet process with a latent concentration",
    "Geometric",
    "Kumaraswamy",
    "Levy",
    "Pareto",
    "Weibull",
    "a choice between none and a chance",
    "areas_with_neighbours",
    "asymmetric noise",
    "censored waiting times",
    "column_of_ones",
    "correlated_intercepts_and_slopes",
    "delta_of_the_row",
    "diagonal precision",
    "errors that share what is left",
    "exponentiated",
    "factor_of_squares",
    "flat chance",
    "flat variance",
    "fori_loop",
    "groups_that_add_up_to_zero",
    "half_cauchy_noise_and_scale",
    "half_normal_noise",
    "improper_mean",
    "index_from_two_states",
    "inflated by name",
    "known mean",
    "known_error_rates",
    "lasso_with_latent_rate",
    "log of an einsum",
    "logaddexp_of_two",
    "logistic by its exponential",
    "logsumexp_keeps_axes",
    "low rank",
    "mask_around_an_event_of_the_same_length",
    "mixture of different kinds",
    "mixture_of_regressions",
    "multinomial_dirichlet",
    "multiple_of_a_covariance",
    "multivariate t",
    "negative_binomial_by_its_mean",
    "negative_binomial_by_one_minus",
    "normal inverse Wishart",
    "one of two signals and a background",
    "one_hot_groups",
    "poisson_hidden_markov_by_scan",
    "ppca_column_by_column",
    "product_of_two_globals",
    "random walk",
    "random_walk_of_the_row",
    "rate by its logarithm",
    "reference_precision",
    "robust_with_latent_scale",
    "scan of a walk",
    "schools",
    "shifted and scaled",
    "sticks_in_logarithms",
    "three_levels",
    "topics_of_log_probabilities",
    "weighted_rows",
}


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", _conjugate_closed_forms.POSTERIORS)
def test_closed_form(name: str) -> None:
    case = CONJUGATE[name]
    rows = case.make_rows(np.random.default_rng(0), 50)
    params = fit_to(case.fn, *rows, budget=math.inf).params
    posterior = _conjugate_closed_forms.POSTERIORS[name](*rows)
    for parameter, value in posterior.items():
        np.testing.assert_allclose(params[parameter], value, rtol=1e-6)


def test_there_are_enough_models() -> None:
    assert len(CONJUGATE) >= 200
    assert set(CONJUGATE) > FAST


@pytest.mark.thorough
@pytest.mark.parametrize("name", some_fast(CONJUGATE, FAST))
def test_conjugate_model_is_compiled_to_what_it_means(name: str) -> None:
    case = CONJUGATE[name]
    assert case.reasons_against_vips() == {}
    with jax.enable_x64(True):
        graph = case.graph
        check_rows_are_separate(graph)
        # The rows of the test, with every index, in place of synthetic ones.
        certify(interpreted(graph), seed=3)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", CONJUGATE)
def test_bound_of_a_compiled_model_never_falls(name: str) -> None:
    case = CONJUGATE[name]
    marked, graph = graph_of(case.fn, case.rows)
    check_rows_are_separate(graph)
    batch = FullBatch(compile_model(marked, graph), graph.arguments.private, 300)
    state = batch.start()
    bounds = []
    for _ in range(8):
        state = batch.step(state)
        bounds.append(batch.bound(state))
    assert np.all(np.isfinite(bounds))
    assert np.all(np.diff(bounds) >= -1e-8 * (1 + np.abs(bounds[1:]))), bounds
