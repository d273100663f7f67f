"""What the documentation says is true."""

import importlib.util
import math
import re
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to

import numpyro_vips as nv
from numpyro_vips.conjugacy.algebra import elementwise
from numpyro_vips.conjugacy.densities import log_densities
from numpyro_vips.conjugacy.interpreter.values import as_form


def code_blocks(path: Any) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_tables_of_what_is_recognised_are_up_to_date(repository):
    path = repository / "docs" / "generate_conjugacy.py"
    spec = importlib.util.spec_from_file_location("generate_conjugacy", path)
    assert spec is not None and spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    page = generator.PAGE.read_text(encoding="utf-8")
    assert generator.with_tables(page) == page, "run docs/generate_conjugacy.py"
    names = re.findall(r"^\| `(\w+)`", page, re.MULTILINE)
    registered = {kind.__name__ for kind in log_densities.REGISTRY}
    assert registered == set(names), "a density in which no latent may stand"


@pytest.fixture
def registry(monkeypatch):
    """A copy of the registry, so that what a test adds does not stay."""
    copied = dict(log_densities.REGISTRY)
    monkeypatch.setattr(log_densities, "REGISTRY", copied)
    return copied


@pytest.fixture
def incomes(repository, registry):
    """The likelihood of docs/adding_a_likelihood.md and its model."""
    likelihood, model = code_blocks(repository / "docs" / "adding_a_likelihood.md")
    assert len(likelihood.strip().splitlines()) < 20
    names: dict[str, Any] = {"numpyro": numpyro}
    exec(likelihood + model, names)
    assert registry[dist.Pareto] is names["pareto"]
    return nv.private(names["incomes"], unit="people")


def test_added_likelihood_gives_the_exact_posterior(incomes):
    y = np.random.default_rng(0).pareto(3.0, 200) + 1.0
    with jax.enable_x64(True):
        result = fit_to(incomes, y, budget=math.inf, engine="vips")
        samples = result.sample_posterior(jax.random.key(1), (40_000,))
        draws = np.asarray(samples["alpha"])
    # alpha given y is Gamma(2 + N, 1 + Σ log y).
    shape, rate = 2.0 + len(y), 1.0 + np.log(y).sum()
    standard_error = math.sqrt(shape) / rate / math.sqrt(len(draws))
    assert abs(float(np.mean(draws)) - shape / rate) < 5 * standard_error
    assert float(np.var(draws)) == pytest.approx(shape / rate**2, rel=0.05)


@pytest.mark.slow
def test_page_on_tables_ends_in_the_coefficients_that_made_the_table(
    repository, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in code_blocks(repository / "docs" / "tables.md"):
        if ".design(" not in block or importlib.util.find_spec("formulae"):
            exec(block, names)
    truth = {"age": 0.05, "job=cook": 0.0, "job=nurse": 1.0, "job=other": 0.0}
    truth |= {"log(income)": -0.5, "intercept": 0.5 * math.log(20_000) - 2.5}
    assert names["coefficients"].keys() == truth.keys()
    for name, draws in names["coefficients"].items():
        # Rows of unknown age stand for older ones, hence more than four deviations.
        assert abs(draws.mean() - truth[name]) < 6 * draws.std(), name
    labels = names["idata"].posterior["w"]["feature"].values
    assert tuple(labels) == names["features"].design_columns


@pytest.mark.thorough
def test_models_are_compared_inside_one(repository):
    """The coefficients that made the table of docs/faq.md are 1 and 1.5."""
    names: dict[str, Any] = {}
    for block in code_blocks(repository / "docs" / "faq.md"):
        exec(block, names)
    assert names["result"].privacy.epsilon <= 1.0
    assert abs(names["bend"].mean() - 1.5) < 6 * names["bend"].std() < 1.5


def padded(repository: Any, visits: Any) -> dict[str, Any]:
    """What docs/models.md makes of a table with one row per visit."""
    blocks = code_blocks(repository / "docs" / "models.md")
    (block,) = [block for block in blocks if "cumcount" in block]
    schema = nv.Schema(age=nv.Bounded(0, 100), ill=nv.Binary())
    names: dict[str, Any] = {"np": np, "schema": schema, "visits": visits}
    names["max_visits"] = 2
    exec(block, names)
    return names


def test_visits_are_padded_person_by_person(repository):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("narwhals")
    nan = math.nan
    visits = pd.DataFrame(
        {
            "person": ["a", "b", None, "a", "c", "a", "b"],
            "date": [3, 1, 1, 1, 5, 2, 2],
            "age": [30.0, 50.0, 99.0, 10.0, nan, 20.0, 60.0],
            "ill": [1.0, 0.0, 1.0, 1.0, 1.0, 0.0, nan],
        }
    )
    found = padded(repository, visits)
    expected = {  # ages, encoded; the third visit of a is dropped
        "a": ([-0.8, -0.6], [True, True], [1, 0]),
        "b": ([0.0, 0.0], [True, False], [0, 0]),
        "c": ([0.0, 0.0], [True, False], [1, 0]),
    }
    people = dict.fromkeys(found["visits"]["person"])  # in the order of their rows
    assert people.keys() == expected.keys()
    for row, name in enumerate(people):
        ages, seen, ill = expected[name]
        np.testing.assert_allclose(found["X"][row, :, 0], ages)
        np.testing.assert_array_equal(found["seen"][row], seen)
        np.testing.assert_array_equal(found["y"][row], ill)


def test_groups_of_a_table_are_places_in_a_list(repository):
    """In the order that docs/tables.md says."""
    (block,) = [
        block
        for block in code_blocks(repository / "docs" / "tables.md")
        if "schools = " in block
    ]
    names: dict[str, Any] = {"nv": nv}
    exec(block, names)
    assert names["group"].tolist() == [1, 0]
    np.testing.assert_allclose(names["hours"], [-0.5, 0.5])
    np.testing.assert_allclose(names["score"], [0.1, 0.6])


def test_the_reference_has_every_public_name(repository):
    page = (repository / "docs" / "api.md").read_text(encoding="utf-8")
    kinds = "autoclass|autofunction|autoexception"
    named = set(re.findall(rf"^\.\. (?:{kinds}):: (\w+)$", page, re.MULTILINE))
    assert named == {*nv.__all__, *nv.accounting.__all__} - {"accounting"}


def test_likelihood_that_is_wrong_is_refused(incomes, registry):
    def wrong(x, scale, alpha, *, augment):
        m, a = as_form(scale), as_form(alpha)
        return elementwise.log(a) + a * elementwise.log(m) - a * elementwise.log(x)

    registry[dist.Pareto] = wrong
    y = np.full(30, 2.0)
    budget = nv.PrivacyBudget(math.inf)
    with pytest.raises(nv.NotConjugateError, match=r"certificate: .*NumPyro"):
        nv.PrivateVI(incomes, budget=budget, engine="vips").explain(y)
    assert nv.PrivateVI(incomes, budget=budget).explain(y).engine == "dpvi"
