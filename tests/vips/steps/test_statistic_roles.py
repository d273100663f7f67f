"""Which statistics play which part, on models of which it is plain."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _models import uncertified

from numpyro_vips.conjugacy.structure.statistic import Diagonal, Statistic
from numpyro_vips.privacy.gaussian_mechanism import Block
from numpyro_vips.vips.steps import statistic_roles as module
from numpyro_vips.vips.steps.statistic_roles import StatisticRoles, block_of

VECTOR = Statistic(
    name="v",
    atoms=(("w", "x", 1.0, (0,)),),
    shape=(3,),
    release="once",
    matrix=None,
)
MATRIX = dataclasses.replace(VECTOR, shape=(3, 3), matrix=((), (0,), (1,)))


@pytest.mark.parametrize(
    ("changes", "geometry", "edges"),
    [
        ({}, "signed", None),
        ({"lower": -1.0, "upper": 2.0}, "box", (-1.0, 2.0)),
        ({"lower": 0.0}, "signed", None),
        ({"lower": 0.0, "upper": 0.0}, "signed", None),
        ({"geometry": "nonnegative"}, "nonnegative", None),
        ({"geometry": "nonnegative", "lower": 0.0, "upper": 1.0}, "box", (0.0, 1.0)),
        # A box around zero says less than that no entry is negative.
        (
            {"geometry": "nonnegative", "lower": -1.0, "upper": 1.0},
            "nonnegative",
            None,
        ),
    ],
)
def test_a_block_has_the_tighter_of_box_and_geometry(
    changes: dict[str, Any], geometry: str, edges: tuple[float, float] | None
) -> None:
    block = block_of(dataclasses.replace(VECTOR, **changes))
    assert block.geometry == geometry
    if edges is not None:
        assert (block.lower, block.upper) == edges


def test_no_limit_on_an_entry_outlasts_units_that_are_not_known_yet() -> None:
    boxed = dataclasses.replace(VECTOR, geometry="nonnegative", lower=0.0, upper=1.0)
    assert block_of(boxed, has_units=True) == Block(name="v", shape=(3,))
    matrix = dataclasses.replace(MATRIX, lower=0.0, upper=1.0)
    assert block_of(matrix).geometry == "box"
    assert block_of(matrix, has_units=True).geometry == "signed"


def test_a_matrix_is_symmetric_and_hollow_where_its_diagonal_is_elsewhere() -> None:
    block = block_of(MATRIX, directions=3)
    assert block.symmetric and not block.hollow and block.directions == 3
    diagonal = Diagonal(statistic="v", factor=2.0, axes=(0,))
    assert block_of(dataclasses.replace(MATRIX, diagonal=diagonal)).hollow


def normal_mean(y: Any) -> None:
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def mixture(y: Any) -> None:
    with numpyro.plate("components", 2):
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(jnp.array([0.4, 0.6])))
        numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)


def roles_of(
    model: Callable[..., None], *, once: bool = True, norms: bool = False
) -> StatisticRoles:
    program = uncertified(model, (np.zeros(4, np.float32),))
    return StatisticRoles(program, num_rows=4, release_once=once, has_norms=norms)


def test_what_does_not_depend_on_the_globals_is_released_once() -> None:
    roles = roles_of(normal_mean)
    assert [block.name for block in roles.blocks("once")] == ["⟨m⟩"]
    assert roles.blocks("adaptive") == () and roles.open == frozenset()
    # Or with everything else, if the caller wants it so.
    together = roles_of(normal_mean, once=False)
    assert together.blocks("once") == ()
    assert [block.name for block in together.blocks("adaptive")] == ["⟨m⟩"]


def test_what_depends_on_latents_of_rows_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    roles = roles_of(mixture)
    names = {block.name for block in roles.blocks("adaptive")}
    assert names and roles.adaptive == names == roles.open
    # Too much work: nobody works out what rows leave open.
    monkeypatch.setattr(module, "_MOST_COORDINATES", 1)
    assert roles_of(mixture).open == frozenset()


def test_norms_of_the_callers_are_those_of_statistics_as_they_are() -> None:
    moved = roles_of(mixture)
    assert moved.recentred_factors == {"mu"} and moved.recentred
    assert moved.moved >= moved.recentred | moved.adaptive
    given = roles_of(mixture, norms=True)
    assert given.recentred_factors == given.recentred == given.moved == frozenset()
