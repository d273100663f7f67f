"""Moments of columns: how far a row moves them, what noise they get, what they cost."""

import json
import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to

import numpyro_vips as nv
from numpyro_vips.schema import moments as module
from numpyro_vips.schema.moments import (
    MISSING,
    PLACES,
    SQUARES,
    mechanism_of,
    read_moments,
    sums_of_rows,
)

NAN, INF = math.nan, math.inf
SCHEMA = nv.Schema(
    age=nv.Bounded(0, 120, missing="indicator"),
    income=nv.LogBounded(1_000, 1_000_000),
    job=nv.Categorical(["clerk", "cook"], reference="clerk"),
    ill=nv.Binary(),
)
BOUNDED = {"age": nv.Bounded(0, 120), "income": nv.LogBounded(1_000, 1_000_000)}


def table(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    people = {
        "age": rng.uniform(20, 80, count),
        "income": rng.lognormal(10, 1, count),
        "job": rng.choice(["clerk", "cook", "spy"], count),
        "ill": rng.integers(0, 2, count),
    }
    people["age"][::7] = NAN
    return people


def of_table(people: dict[str, np.ndarray], budget: Any = None, **options: Any) -> Any:
    budget = nv.PrivacyBudget(1.0, 1e-6) if budget is None else budget
    return SCHEMA.private_moments(people, budget=budget, unit="people", **options)


# --- how far one row moves what is released -------------------------------------------

cells = st.one_of(st.sampled_from([NAN, INF, -INF, -1.0, 0.0, 1.0, 1e300]), st.floats())
rows = st.lists(cells, min_size=2, max_size=2)


def joint(table: list[list[float]]) -> np.ndarray:
    """The joint vector of a table's sums, as the mechanism scales it."""
    x, y = np.array(table).T
    places = (
        nv.Bounded(-1, 1).place({"x": x}, "x"),
        nv.LogBounded(1e-3, 1e3).place({"y": y}, "y"),
    )
    sums = sums_of_rows(np.stack(places, axis=1))
    blocks = mechanism_of(2, "add_or_remove", 1.0).blocks
    return np.concatenate([block.scale * sums[block.name] for block in blocks])


@hypothesis.given(st.lists(rows, min_size=1, max_size=6), rows)
@hypothesis.settings(deadline=None)
def test_no_row_moves_the_sums_further_than_the_bound(table, replacement):
    present = joint([*table, replacement])
    removed = np.linalg.norm(present - joint(table))
    assert removed <= mechanism_of(2, "add_or_remove", 1.0).sensitivity()
    replaced = np.linalg.norm(present - joint([*table[:-1], replacement, [0.5, 0.5]]))
    assert replaced <= mechanism_of(2, "replace_one", 1.0).sensitivity()


def test_the_bounds_are_nearly_reached():
    at_ends, missing = [[1.0, 1e3]], [[NAN, NAN]]
    added = mechanism_of(2, "add_or_remove", 1.0).sensitivity()
    for row in (at_ends, missing):
        moved = np.linalg.norm(joint([[0.0, 1.0], *row]) - joint([[0.0, 1.0]]))
        assert moved == pytest.approx(added, rel=1e-5)
    # The boxes of the blocks do not know that a square follows from its place.
    replaced = np.linalg.norm(joint(at_ends) - joint([[-0.15, 10**-0.45]]))
    assert 0.8 < replaced / mechanism_of(2, "replace_one", 1.0).sensitivity() < 1.0


def test_sums_of_many_rows_differ_by_no_more_than_is_counted():
    rng = np.random.default_rng(0)
    places = rng.uniform(-1, 1, (100_000, 1))
    whole, rest = sums_of_rows(places), sums_of_rows(places[:-1])
    u = float(places[-1, 0])
    for name, exact in ((PLACES, u), (SQUARES, u * u - 0.5), (MISSING, 0.0)):
        moved = float(whole[name][0] - rest[name][0])
        assert abs(moved - exact) <= 100_000 * 2.0**-52


# --- the noise ------------------------------------------------------------------------


def test_the_noise_is_that_of_the_statement(monkeypatch):
    people, seen = table(50), []

    def reading(noisy: Any, mechanism: Any, *rest: Any) -> Any:
        seen.append(
            {
                block.name: block.scale * (noisy[block.name] - exact[block.name])
                for block in mechanism.blocks
            }
        )
        return read_moments(noisy, mechanism, *rest)

    places = [column.place(people, name) for name, column in BOUNDED.items()]
    exact = sums_of_rows(np.stack(places, axis=1))
    monkeypatch.setattr(module, "read_moments", reading)
    runs = 1000
    released = [of_table(people) for _ in range(runs)]
    (event,) = released[0].privacy.events
    assert event.sensitivity == pytest.approx(2.0, rel=1e-5)
    assert event.noise_multiplier > 1
    for name in (PLACES, SQUARES, MISSING):
        noise = np.array([noisy[name] for noisy in seen]) / event.noise_stddev
        # Of n draws the standard deviation has the relative error 1 / sqrt(2 n).
        error = 4 / math.sqrt(2 * runs)
        np.testing.assert_allclose(noise.std(0), 1.0, atol=error)
        np.testing.assert_allclose(noise.mean(0), 0.0, atol=4 / math.sqrt(runs))
    blocks = np.concatenate(
        [np.array([noisy[n] for noisy in seen]) for n in seen[0]], axis=1
    )
    others = np.corrcoef(blocks.T) - np.eye(blocks.shape[1])
    assert np.abs(others).max() < 5 / math.sqrt(runs)


def test_moments_know_how_noisy_they_are():
    people = table(4000)
    # Where no number is missing, half of the noise in how many are there is cut off.
    people["income"][::5] = NAN
    exact = of_table(people, nv.PrivacyBudget(INF))
    found = [of_table(people, epsilon=0.5, delta=1e-7) for _ in range(300)]
    for name in BOUNDED:
        for what in ("mean", "sd"):
            true = getattr(exact[name], what)
            z = np.array(
                [
                    (getattr(one[name], what) - true)
                    / getattr(one[name], f"{what}_noise")
                    for one in found
                ]
            )
            assert abs(z.mean()) < 5 / math.sqrt(300) + 0.05
            assert abs(z.std() - 1) < 5 / math.sqrt(600)


# --- reading --------------------------------------------------------------------------


def test_without_noise_the_moments_are_those_of_the_numbers_that_are_there():
    people = table(1000)
    found = of_table(people, nv.PrivacyBudget(INF))
    age = people["age"][~np.isnan(people["age"])]
    log_income = np.log(people["income"].clip(1_000, 1_000_000))
    for name, values in (("age", age), ("income", log_income)):
        assert found[name].mean == pytest.approx(values.mean(), rel=1e-9)
        assert found[name].sd == pytest.approx(values.std(), rel=1e-9)
        assert found[name].mean_noise == found[name].sd_noise == 0
    assert "NOT PRIVATE" in str(found.privacy)
    assert not found.privacy.events


@pytest.mark.parametrize("values", [[60.0] * 20, [0.0] * 20, [NAN] * 20, [130.0]])
@pytest.mark.parametrize("epsilon", [INF, 0.01])
def test_columns_without_spread_and_noise_alone_make_moments_that_can_be_used(
    values, epsilon
):
    budget = nv.PrivacyBudget(epsilon, 1e-6)
    schema = nv.Schema(age=nv.Bounded(0, 120))
    people = {"age": np.array(values)}
    for _ in range(20):
        found = schema.private_moments(people, budget=budget, unit="people")
        assert 0 <= found["age"].mean <= 120
        assert 0 < found["age"].sd <= 60
        X = schema.standardised(found).encode(people)
        assert np.isfinite(X).all()
        budget = nv.PrivacyBudget(epsilon, 1e-6)


def test_a_spread_below_its_noise_is_read_as_the_noise_and_said_so():
    people = {"age": np.full(2000, 60.0)}
    schema = nv.Schema(age=nv.Bounded(0, 120))
    hidden = 0
    for _ in range(200):
        budget = nv.PrivacyBudget(1.0, 1e-6)
        moments = schema.private_moments(people, budget=budget, unit="people")
        found = moments["age"]
        assert ("hidden by noise" in repr(moments)) == found.is_hidden
        if found.is_hidden:
            hidden += 1
            # The variance is its own noise, whose derivative in the sd is 2 sd.
            assert found.sd_noise == pytest.approx(found.sd / 2)
    # Noise of mean zero exceeds its standard deviation in a sixth of cases; as no more
    # numbers are there than rows, half of what is in their number is cut off.
    assert 150 <= hidden < 200


# --- the ledger -----------------------------------------------------------------------


def test_the_ledger_is_charged_before_the_sums_are_taken(monkeypatch):
    budget = nv.PrivacyBudget(1.0, 1e-6)

    def fails(places: Any) -> Any:
        assert len(budget.charges) == 1
        raise MemoryError

    monkeypatch.setattr(module, "sums_of_rows", fails)
    with pytest.raises(MemoryError):
        of_table(table(50), budget)
    assert budget.spent().epsilon > 0.09


@pytest.mark.parametrize("cell", [5e-324, 1e-200, 1e300, -INF, NAN])
def test_no_cell_ends_a_release_where_the_caller_has_numpy_raise(cell):
    schema = nv.Schema(x=nv.Bounded(-1, 1), y=nv.Bounded(-1e300, 1e300))
    budget, cells = nv.PrivacyBudget(1.0, 1e-6), [0.5, cell]
    with np.errstate(all="raise"):
        X = schema.encode({"x": cells, "y": cells})
        schema.private_moments({"x": cells, "y": cells}, budget=budget, unit="people")
    assert np.all(np.abs(X) <= 1)


def test_a_release_has_an_entry_and_a_statement_of_its_own():
    budget = nv.PrivacyBudget(1.0, 1e-6)
    moments = of_table(table(50), budget)
    (charge,) = budget.charges
    statement = moments.privacy
    assert charge.unit == statement.unit == "people"
    assert charge.events == statement.events
    assert charge.label == charge.events[0].label
    assert "'age', 'income'" in charge.label
    assert 0.0999 < charge.epsilon <= 0.1 and charge.delta == pytest.approx(1e-7)
    assert (statement.epsilon, statement.delta) == (charge.epsilon, charge.delta)
    text = json.dumps(statement.to_dict()) + str(statement)
    assert "number of rows: 50 (the actual number" in text
    again = nv.PrivacyStatement.from_dict(statement.to_dict())
    assert again == statement
    with pytest.warns(UserWarning, match="repeatable"):
        declared = of_table(
            table(50), budget, num_rows=60, label="mine", insecure_seed=1
        )
    assert "INSECURE" in declared.privacy.noise_source
    assert declared.privacy.num_rows == 60 and declared.privacy.num_rows_declared
    assert [charge.label for charge in budget.charges][1:] == ["mine"]


@pytest.mark.parametrize("accountant", nv.accounting.ACCOUNTANTS)
@pytest.mark.parametrize("composition", ["split", "rdp"])
def test_every_ledger_can_pay(accountant, composition):
    budget = nv.PrivacyBudget(2.0, 1e-5, composition=composition, accountant=accountant)
    for _ in range(2):
        of_table(table(50), budget, relation="replace_one", epsilon=0.5, delta=1e-6)
    assert 0 < budget.spent().epsilon <= 2.0
    assert budget.relation == "replace_one"


def test_narrow_numbers_are_paid_in_all_digits():
    share = {"epsilon": np.float16(0.7), "delta": np.float16(1e-4)}
    found = of_table(table(400), nv.PrivacyBudget(epsilon=1.0, delta=1e-3), **share)
    assert found.privacy.delta == float(share["delta"])
    assert type(found.privacy.delta) is float
    assert found.privacy.epsilon <= float(share["epsilon"])


def test_what_cannot_be_released_costs_nothing():
    people, budget = table(50), nv.PrivacyBudget(1.0, 1e-6)
    without = {name: values for name, values in people.items() if name != "age"}
    words = people | {"age": people["job"]}
    short = people | {"age": people["age"][1:]}
    cases: list[tuple[type[Exception], str, Any, dict]] = [
        (ValueError, "to have a column 'age'", without, {}),
        (TypeError, "'age' to hold numbers", words, {}),
        (ValueError, "have one length", short, {}),
        (ValueError, "num_rows=0", people, {"num_rows": 0}),
        (ValueError, "epsilon=-1", people, {"epsilon": -1}),
        (ValueError, "delta=0", people, {"delta": 0.0}),
        (ValueError, "unit=''", people, {"unit": ""}),
        (ValueError, "relation='swap'", people, {"relation": "swap"}),
        (nv.BudgetExceededError, "Nothing was charged", people, {"epsilon": 2.0}),
    ]
    for error, message, frame, options in cases:
        with pytest.raises(error, match=message):
            SCHEMA.private_moments(
                frame, **{"budget": budget, "unit": "people", **options}
            )
    with pytest.raises(TypeError, match="to be a PrivacyBudget"):
        untyped: Any = 1.0
        of_table(people, untyped)
    no_range = nv.Schema(ill=nv.Binary())
    with pytest.raises(ValueError, match="a column with a range"):
        no_range.private_moments(people, budget=budget, unit="people")
    assert budget.charges == ()


def test_a_ledger_about_others_refuses():
    budget = nv.PrivacyBudget(1.0, 1e-6)
    of_table(table(50), budget)
    with pytest.raises(ValueError, match="unit='people'"):
        SCHEMA.private_moments(table(50), budget=budget, unit="visits")
    with pytest.raises(ValueError, match="relation='add_or_remove'"):
        of_table(table(50), budget, relation="replace_one")
    assert len(budget.charges) == 1


# --- standardised columns -------------------------------------------------------------


def test_columns_are_encoded_about_the_mean_in_units_of_the_sd():
    people = table(500)
    standardised = SCHEMA.standardised(of_table(people, nv.PrivacyBudget(INF)))
    assert standardised.design_columns == SCHEMA.design_columns
    assert standardised.standardised_columns == ("age", "income")
    assert SCHEMA.standardised_columns == ()
    X = standardised.encode(people)
    there = ~np.isnan(people["age"])
    for values in (X[there, 0], X[:, 2]):
        assert values.mean() == pytest.approx(0, abs=1e-6)
        assert values.std() == pytest.approx(1, rel=1e-6)
    np.testing.assert_array_equal(X[~there, 0], 0)
    np.testing.assert_array_equal(X[:, 3:], SCHEMA.encode(people)[:, 3:])
    # A range still bounds what is encoded.
    extreme = {"age": [INF, -INF, NAN], "income": [0.0, INF, NAN]}
    extreme |= {"job": ["spy", "cook", "clerk"], "ill": [1, 0, 1]}
    norms = np.linalg.norm(standardised.encode(extreme), axis=1)
    assert 2 < norms.max() <= standardised.row_norm
    drawn = standardised.synthetic_rows(np.random.default_rng(0), 500, places="ends")
    assert np.linalg.norm(drawn, axis=1).max() == pytest.approx(
        standardised.row_norm, rel=1e-2
    )


def test_products_of_standardised_columns_keep_their_norm():
    pytest.importorskip("formulae")
    products = SCHEMA.standardised(of_table(table(500))).design("ill ~ age*income")
    assert products.standardised_columns == ("age", "income")
    rows = products.synthetic_rows(np.random.default_rng(0), 500, places="ends")
    longest = np.linalg.norm(rows, axis=1).max()
    assert longest == pytest.approx(products.row_norm, rel=0.2)
    assert longest <= products.row_norm * (1 + 1e-12)


@pytest.mark.parametrize("formula", [None, "ill ~ age*income"])
def test_coefficients_come_back_in_the_units_of_the_table(formula):
    people = table(300)
    encoding: Any = SCHEMA.standardised(of_table(people)).drop("job")
    if formula is not None:
        pytest.importorskip("formulae")
        encoding = encoding.design(formula)
    X = encoding.encode(people)
    weights = np.random.default_rng(1).normal(size=len(encoding.design_columns))
    found = encoding.decode(weights, 0.5)
    there = ~np.isnan(people["age"])
    age, income = people["age"], np.log(people["income"].clip(1e3, 1e6))
    raw = {"age": age, "log(income)": income, "age:log(income)": age * income}
    raw |= {"ill": people["ill"], "intercept": np.ones(300)}
    raw |= {name: np.zeros(300) for name in found if "missing" in name}
    predictor = np.sum([found[name] * raw[name] for name in found], axis=0)
    np.testing.assert_allclose(predictor[there], (0.5 + X @ weights)[there], atol=1e-9)


def test_a_standardised_schema_prints_as_the_code_that_makes_it():
    standardised = SCHEMA.standardised(of_table(table(50)))
    again = eval(repr(standardised), dict(vars(nv)))
    assert again == standardised
    assert hash(again) == hash(standardised) != hash(SCHEMA)


def test_moments_print_as_a_table_in_the_units_of_the_encoding():
    moments = of_table(table(1000), nv.PrivacyBudget(INF))
    header, age, income = repr(moments).splitlines()
    assert " ".join(header.split()) == "mean sd of its noise sd sd of its noise"
    assert age.split()[:3] == ["age", f"{moments['age'].mean:.4g}", "0"]
    assert age.split()[3:] == [f"{moments['age'].sd:.4g}", "0"]
    assert income.startswith("log(income)")


def test_public_means_need_no_budget():
    column = nv.Bounded(0, 120, mean=45, sd=15)
    assert eval(repr(column), dict(vars(nv))) == column
    np.testing.assert_allclose(
        nv.Schema(age=column).encode({"age": [45, 60, -INF]}).ravel(), [0, 1, -3]
    )
    untyped: Any = nv.Bounded
    for options, message in (
        ({"mean": 45}, "together"),
        ({"sd": 45}, "together"),
        ({"mean": NAN, "sd": 1}, "mean=nan"),
        ({"mean": 45, "sd": 0}, "sd=0 to be positive"),
        ({"mean": 45, "sd": 1e-320}, "not to be that small"),
    ):
        with pytest.raises(ValueError, match=message):
            untyped(0, 120, **options)


def test_moments_of_other_columns_are_refused():
    moments = of_table(table(50))
    with pytest.raises(ValueError, match="Expected moments of 'ill'"):
        nv.Schema(ill=nv.Binary()).standardised(moments)
    with pytest.raises(ValueError, match="'age' as Bounded"):
        nv.Schema(age=nv.Bounded(0, 100)).standardised(moments)
    untyped: Any = {"age": (40, 10)}
    with pytest.raises(TypeError, match="mean=, sd="):
        SCHEMA.standardised(untyped)
    alone = nv.Schema(age=SCHEMA["age"], ill=nv.Binary()).standardised(moments)
    assert alone.standardised_columns == ("age",)


@pytest.mark.thorough
def test_a_fit_says_that_its_columns_were_standardised():
    @nv.private(unit="people")
    def model(X: Any, y: Any = None):
        b: Any = numpyro.sample("b", dist.Normal(0.0, 10.0))
        w: Any = numpyro.sample(
            "w", dist.Normal(0.0, 10.0).expand([X.shape[1]]).to_event(1)
        )
        with numpyro.plate("people", X.shape[0]):
            numpyro.sample("y", dist.Normal(b + X @ w, 1.0), obs=y)

    people, budget = table(400), nv.PrivacyBudget(INF)
    people["age"] = np.nan_to_num(people["age"], nan=50.0)
    features = SCHEMA.drop("job", "ill")
    y = 0.1 * people["age"] + 2.0 * np.log(people["income"].clip(1e3, 1e6)) - 20
    features = features.standardised(
        features.private_moments(people, budget=budget, unit="people")
    )
    result = fit_to(model, features.encode(people), y, budget=budget)
    assert any("'age', 'income'" in fact for fact in result.privacy.public)
    found = features.decode(result, "b", rng_key=jax.random.key(1))
    assert float(found["age"].mean()) == pytest.approx(0.1, abs=0.01)
    assert float(found["log(income)"].mean()) == pytest.approx(2.0, abs=0.1)
    assert float(found["intercept"].mean()) == pytest.approx(-20, abs=1.0)
