"""The gallery of models that others published: all of them run on their data."""

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpyro import handlers
from numpyro.infer import init_to_uniform

import numpyro_vips as nv


@pytest.fixture(scope="module")
def gallery(repository: Path) -> Iterator[tuple[Any, ...]]:
    """The models of `benchmarks/foreign_models/`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(repository / "benchmarks"))
        import foreign_models  # type: ignore[import-not-found]

        yield foreign_models.GALLERY
    for name in [name for name in sys.modules if name.startswith("foreign_models")]:
        sys.modules.pop(name)


def sites_of(foreign: Any, arguments: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The model's sites on its arguments, in shapes alone, with their log densities."""
    found: dict[str, dict[str, Any]] = {}

    def log_densities(key: jax.Array) -> list[jax.Array]:
        # Priors may be improper, so no latent is drawn from its own.
        model = handlers.substitute(
            handlers.seed(foreign.model, key), substitute_fn=init_to_uniform
        )
        trace = handlers.trace(model).get_trace(**arguments)
        found.update({n: s for n, s in trace.items() if s["type"] == "sample"})
        return [site["fn"].log_prob(site["value"]) for site in found.values()]

    jax.eval_shape(log_densities, jax.random.key(0))
    return found


def test_models_have_names_sources_and_licences(gallery: tuple[Any, ...]):
    names = [foreign.name for foreign in gallery]
    assert len(set(names)) == len(names) >= 40
    for foreign in gallery:
        assert foreign.source and foreign.rows and foreign.licence
        # What is not simulated has been taken from somewhere, under some licence.
        assert (foreign.rows == "simulated") == (foreign.licence == "as the project")


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Out-of-support values")  # Placeholders.
def test_models_accept_their_data(gallery: tuple[Any, ...]):
    for foreign in gallery:
        arguments = foreign.arguments(np.random.default_rng(0))
        assert set(foreign.public) <= set(arguments), foreign.name
        private = {
            len(arguments[name]) for name in arguments if name not in foreign.public
        }
        assert len(private) == 1, foreign.name
        sites = sites_of(foreign, arguments)
        plates = {
            frame.name: frame.size
            for site in sites.values()
            for frame in site["cond_indep_stack"]
        }
        assert plates[foreign.unit] in private, foreign.name
        latents = {name for name in sites if not sites[name]["is_observed"]}
        assert set(foreign.truth or {}) <= latents, foreign.name


def test_simulated_rows_are_the_same_in_every_precision(gallery: tuple[Any, ...]):
    (coin,) = [foreign for foreign in gallery if foreign.name == "coin"]
    rows = coin.data()["y"]
    with jax.enable_x64(True):
        assert np.array_equal(coin.data()["y"], rows)
    # 500 tosses at 0.75 have a standard deviation of 0.019.
    assert abs(np.mean(rows) - coin.truth["theta"]) < 0.08


def test_references_are_of_the_models(gallery: tuple[Any, ...], repository: Path):
    path = repository / "benchmarks" / "records" / "foreign_reference.json"
    references = json.loads(path.read_text())
    assert set(references) <= {foreign.name for foreign in gallery}
    for name, reference in references.items():
        for summary in reference["sites"].values():
            assert np.shape(summary["mean"]) == np.shape(summary["sd"]), name
            assert np.all(np.isfinite(summary["mean"])), name
            assert np.all(np.asarray(summary["sd"]) >= 0), name


@pytest.mark.slow
def test_each_model_is_explained_or_refused_with_a_reason(gallery: tuple[Any, ...]):
    for foreign in gallery:
        model = nv.private(foreign.model, unit=foreign.unit, public=foreign.public)
        vi = nv.PrivateVI(model, budget=nv.PrivacyBudget(math.inf))
        try:
            plan = vi.explain(**foreign.data())
        except nv.UnsafeModelError as error:
            assert "'" in str(error), f"{foreign.name}: which site?"
        else:
            assert all(plan.reasons.values()), foreign.name
            assert bool(plan.reasons) == (plan.engine == "dpvi"), foreign.name
