"""What is found in a model, and what no engine may run."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.handlers import private
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph

Y = np.zeros(7)


def with_factor(log_factor):
    """A model of two means with a factor that stands outside the plate."""

    def model(y, limit=2.0):
        mean = numpyro.sample("mean", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
        with numpyro.plate("rows", y.shape[0]):
            own = numpyro.sample("own", dist.Normal(mean[0], 1.0))
            numpyro.sample("y", dist.Normal(own + mean[1], 1.0), obs=y)
        numpyro.factor("outside", log_factor(mean, limit, own, y))

    return model


def graph_of(fn, *args):
    model = private(fn, unit="rows")
    return build_graph(model, bind_arguments(model, args, {}))


@pytest.mark.parametrize(
    "log_factor",
    [
        lambda mean, limit, own, y: jnp.where(mean[0] < mean[1], 0.0, -jnp.inf),
        lambda mean, limit, own, y: -(mean**2) * limit,
        lambda mean, limit, own, y: -1.0,
    ],
)
def test_a_factor_of_globals_and_public_numbers_touches_no_row(log_factor):
    site = graph_of(with_factor(log_factor), Y).sites["outside"]
    assert site.row_axis is None
    assert not site.is_latent


@pytest.mark.parametrize(
    ("log_factor", "message"),
    [
        (lambda mean, limit, own, y: -(mean[0] * y.sum()), "private argument 'y'"),
        (lambda mean, limit, own, y: jnp.sum(y > limit), "private argument 'y'"),
        (lambda mean, limit, own, y: -mean[0] * y.shape[0], "number of rows"),
        (lambda mean, limit, own, y: -jnp.sum(own), "latents of theirs"),
        (lambda mean, limit, own, y: -mean[0] * y, "an axis with one entry per row"),
    ],
)
def test_a_factor_outside_the_plate_that_depends_on_rows_is_refused(
    log_factor, message
):
    with pytest.raises(UnsafeModelError, match=f"(?s)'outside'.*{message}"):
        graph_of(with_factor(log_factor), Y)


def with_groups_counted(group, y):
    num_groups = len(np.unique(group))  # Looks at the groups.
    with numpyro.plate("groups", num_groups):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean[group], 1.0), obs=y)


def with_largest_group(group, y):
    with numpyro.plate("groups", int(np.max(group)) + 1):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean[group], 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (with_groups_counted, "`num_groups = len(np.unique(group))"),
        (with_largest_group, '`with numpyro.plate("groups", int(np.max(group)) + 1)'),
    ],
)
def test_a_size_made_from_rows_is_refused_with_its_line_and_the_remedy(model, line):
    with pytest.raises(UnsafeModelError) as caught:
        graph_of(model, np.zeros(7, int), Y)
    assert f" of test_graph.py, {line}" in str(caught.value)
    assert "number of groups to the model as a Python int" in str(caught.value)


def with_number(y, num_rows):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", num_rows):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def test_the_number_of_all_rows_may_be_a_public_number():
    site = graph_of(with_number, Y, len(Y)).sites["y"]
    assert site.shape == (1,)
    row = {"y": np.zeros(1)}
    message = graph_of(with_number, Y, len(Y)).run(row, {"mean": 0.0})["y"]
    assert message["scale"] is None  # It is the engine that scales.


@pytest.mark.parametrize("number", [6, 8, 14])
def test_a_unit_plate_of_any_other_size_is_refused(number):
    with pytest.raises(ValueError, match="one entry per row"):
        graph_of(with_number, Y, number)


def observing(mean, **plate):
    """A model of an array whose mean is made from the latents and `x`."""

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("rows", x.shape[0], **plate):
            numpyro.sample("y", dist.Normal(mean(x, w), 1.0), obs=y)

    return model


def pairing(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.factor("y", -((y - x @ w) ** 2))


def classes(x, y):
    chance = numpyro.sample("chance", dist.Dirichlet(jnp.ones(4)))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Categorical(chance), obs=y)


X = np.zeros((7, 3))
COLUMN = Y[:, None]


@pytest.mark.parametrize(
    ("model", "y", "told"),
    [
        (
            observing(lambda x, w: x @ w),
            COLUMN,
            r"shape \(N, 1\), .*parameters .* have \(N,\).*\(N, N\).*y\.ravel\(\)",
        ),
        (observing(lambda x, w: (x @ w)[:, None]), COLUMN, r"have \(N, 1\).*y\.ravel"),
        (observing(lambda x, w: w[0]), COLUMN, r"\(N, 1\), .*have \(\).*y\.ravel\(\)"),
        (pairing, COLUMN, r"factor has shape \(N, N\)\. It pairs every row"),
        (observing(lambda x, w: w[0]), X, r"\(N, 3\).*to_event\(1\)"),
        (observing(lambda x, w: x @ w, dim=-2), Y, r"axis -2,.*\(N,\).*without dim="),
        (observing(lambda x, w: x @ w), 1.0, r"shape \(\),.* no axis of rows"),
        (classes, np.zeros((7, 4), int), r"indicators pass y\.argmax\(-1\)"),
    ],
)
def test_a_site_that_does_not_fit_its_plate_is_told_with_its_shapes(model, y, told):
    with pytest.raises(UnsafeModelError, match=f"(?s)^'y' .*'rows' .*{told}"):
        graph_of(model, X, y)


def test_only_classes_are_told_of_indicators():
    with pytest.raises(UnsafeModelError) as caught:
        graph_of(observing(lambda x, w: w[0]), X, X)
    assert "indicators" not in str(caught.value)


def partial_likelihood(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    risk = x @ w
    total = jnp.cumsum(jnp.exp(risk))
    numpyro.factor("partial", (risk - jnp.log(total)).sum())


def partial_likelihood_beside_a_plate(x, y):
    with numpyro.plate("rows", len(y)):
        pass
    partial_likelihood(x, y)


@pytest.mark.parametrize(
    "model", [partial_likelihood, partial_likelihood_beside_a_plate]
)
def test_a_density_of_ordered_rows_without_the_plate_is_told_what_stays_wrong(model):
    with pytest.raises(UnsafeModelError, match=r"(?s)may not act.*Cox") as caught:
        graph_of(model, X, Y)
    assert "of test_graph.py, `total = jnp.cumsum(jnp.exp(risk))`" in str(caught.value)


def sum_beside_a_plate(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("rows", len(y)):
        pass
    numpyro.factor("f", -((y - x @ w) ** 2).sum())


def test_a_sum_of_the_rows_own_is_told_to_be_left_to_the_plate():
    with pytest.raises(UnsafeModelError, match="each row and not their sum") as caught:
        graph_of(sum_beside_a_plate, X, Y)
    assert "act on each other" not in str(caught.value)


def test_a_model_that_observes_nothing_is_told_its_sites():
    def forgetful(x, y):
        with numpyro.plate("rows", len(y)):
            numpyro.sample("score", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match=r"\('score'\).*'score', \.\.\., obs=y"):
        graph_of(forgetful, X, Y)


def of_no_columns(y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([0]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(w.sum(), 1.0), obs=y)


def with_no_latents_of_rows(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([0]).to_event(1))
        numpyro.sample("y", dist.Normal(mean + w.sum(-1), 1.0), obs=y)


@pytest.mark.parametrize("model", [of_no_columns, with_no_latents_of_rows])
def test_a_site_without_numbers_is_refused(model):
    with pytest.raises(UnsafeModelError, match=r"'w' has shape .*0.*sample statement"):
        graph_of(model, Y)


def by_group(group, y, num_groups=4):
    with numpyro.plate("groups", num_groups):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    with numpyro.plate("people", len(y)):
        numpyro.sample("y", dist.Normal(level[group], 1.0), obs=y)


@pytest.mark.parametrize(
    ("unit", "num_groups", "kind", "told"),
    [
        ("groups", 4, ValueError, r"size is 4 .*'people' has one .*unit='people'\)"),
        ("groups", 7, UnsafeModelError, r"'people', whose.*name of the other plate"),
        ("units", 4, UnsafeModelError, r"plates are 'groups', 'people'\. If the rows"),
    ],
)
def test_the_plate_of_individuals_is_told_where_another_is_named(
    unit, num_groups, kind, told
):
    model = private(by_group, unit=unit)
    arguments = bind_arguments(model, (np.zeros(7, int), Y, num_groups), {})
    with pytest.raises(kind, match=f"(?s){told}"):
        build_graph(model, arguments)


def test_a_wrong_plate_is_told_before_the_arrays_that_it_spoils():
    def model(x, y):
        with numpyro.plate("rows", 5):
            numpyro.sample("y", dist.Normal(x[:, 0], 1.0), obs=y)

    with pytest.raises(
        ValueError, match=r"size is 5 when .* 2 of the 7 rows"
    ) as caught:
        graph_of(model, X, Y)
    assert caught.value.__suppress_context__
