"""Conjugate models of groups, and of what indices pick and update."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from _cases import Cases, gammas, normals, observe, simplices
from _models import UNIT
from _rows import (
    annotations,
    answers,
    by_group,
    coins,
    games,
    grouped,
    grouped_twice,
    linear,
    points,
)
from numpyro.ops.indexing import Vindex

CASES = Cases()
conjugate = CASES.of


# --- groups ---------------------------------------------------------------------------


@conjugate(grouped)
def one_hot_groups(x: Any, y: Any, g: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    observe(dist.Normal(jax.nn.one_hot(g, 4) @ a, 0.5), y)


@conjugate(grouped_twice)
def two_factors(x: Any, y: Any, g: Any, h: Any) -> None:
    tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0))
    with numpyro.plate("first", 4):
        a = numpyro.sample("a", dist.Normal(0.0, 1 / jnp.sqrt(tau)))
    with numpyro.plate("second", 3):
        b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    observe(dist.Normal(a[g] + b[h], 0.5), y)


@conjugate(grouped_twice)
def table_of_groups(x: Any, y: Any, g: Any, h: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([4, 3]).to_event(2))
    observe(dist.Bernoulli(logits=a[g, h] * x), y > 0)


@conjugate(grouped)
def slopes_by_group(x: Any, y: Any, g: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0))
    with numpyro.plate("groups", 4):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        b = numpyro.sample("b", dist.Normal(mean, tau**-0.5))
    observe(dist.Normal(jnp.take(a, g) + b[g] * x, 0.5), y)


@conjugate(grouped)
def non_centred_groups(x: Any, y: Any, g: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    observe(dist.Normal((mean + 0.3 * z)[g], 0.5), y)


@conjugate(grouped)
def three_levels(x: Any, y: Any, g: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    between = numpyro.sample("between", dist.Gamma(2.0, 2.0))
    within = numpyro.sample("within", dist.Gamma(2.0, 2.0))
    with numpyro.plate("regions", 2):
        region = numpyro.sample("region", dist.Normal(mean, between**-0.5))
    with numpyro.plate("schools", 4):
        centre = region[np.array([0, 0, 1, 1])]
        school = numpyro.sample("school", dist.Normal(centre, within**-0.5))
    observe(dist.Normal(school[g], 0.5), y)


@conjugate(grouped)
def noise_by_group(x: Any, y: Any, g: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("groups", 4):
        tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0))
    observe(dist.Normal(mu, 1 / jnp.sqrt(tau[g])), y)


@conjugate(grouped)
def chosen_by_data(x: Any, y: Any, g: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    observe(dist.Normal(jnp.where(g == 1, a, b) * x, 0.5), y)


@conjugate(grouped)
def rates_by_group(x: Any, y: Any, g: Any) -> None:
    with numpyro.plate("groups", 4):
        p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    observe(dist.Bernoulli(p[g]), y > 0)


@conjugate(grouped)
def simplices_by_group(x: Any, y: Any, g: Any) -> None:
    with numpyro.plate("groups", 4):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(2)))
    observe(dist.Categorical(theta[g]), (y > 0).astype(jnp.int32))


@conjugate(points)
def random_effect_of_the_row(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    between = numpyro.sample("between", dist.Gamma(2.0, 2.0))
    within = numpyro.sample("within", dist.Gamma(2.0, 2.0))
    with numpyro.plate(UNIT, y.shape[0], dim=-2):
        theta = numpyro.sample("theta", dist.Normal(mu, between**-0.5))
        with numpyro.plate("visits", y.shape[1]):
            numpyro.sample("y", dist.Normal(theta, within**-0.5), obs=y)


@conjugate(answers)
def logistic_effect_of_the_row(y: Any) -> None:
    difficulty = numpyro.sample("difficulty", dist.Normal(0.0, 1.0).expand([5]))
    with numpyro.plate(UNIT, y.shape[0]):
        ability = numpyro.sample("ability", dist.Normal(0.0, 1.0))
        logits = ability[:, None] - difficulty
        numpyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y)


@conjugate(answers)
def item_response_with_slopes(y: Any) -> None:
    with numpyro.plate("items", y.shape[1], dim=-1):
        difficulty = numpyro.sample("difficulty", dist.Normal(0.0, 1.0))
        slope = numpyro.sample("slope", dist.Normal(1.0, 0.5))
    with numpyro.plate(UNIT, y.shape[0], dim=-2):
        ability = numpyro.sample("ability", dist.Normal(0.0, 1.0))
        with numpyro.plate("answers", y.shape[1], dim=-1):
            logits = slope * (ability - difficulty)
            numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


# --- indices and updates --------------------------------------------------------------


@conjugate(linear)
def first_weight_held_at_zero(X: Any, y: Any) -> None:
    observe(dist.Normal(X @ normals("w", 3).at[0].set(0.0), 0.5), y)


@conjugate(linear)
def weights_put_into_zeros(X: Any, y: Any) -> None:
    w = jnp.zeros(3).at[jnp.array([2, 0])].set(normals("w", 2))
    observe(dist.Normal(X @ w.at[1].add(1.0).at[0].multiply(2.0), 0.5), y)


@conjugate(by_group)
def reference_precision(y: Any, g: Any) -> None:
    tau = gammas("tau", 3).at[0].set(1.0)
    observe(dist.Normal(0.0, tau[g] ** -0.5), y)


@conjugate(by_group)
def reference_group_at_the_end(y: Any, g: Any) -> None:
    observe(dist.Normal(jnp.append(normals("a", 2), 0.0)[g], 0.5), y)


@conjugate(by_group)
def groups_that_add_up_to_zero(y: Any, g: Any) -> None:
    a = normals("a", 2)
    observe(dist.Normal(jnp.append(a, -a.sum())[g], 0.5), y)


@conjugate(by_group)
def padded_groups(y: Any, g: Any) -> None:
    a = jnp.pad(normals("a", 2, 2), ((0, 1), (0, 0)))
    observe(dist.Bernoulli(logits=a[g, 1]), y > 0)


@conjugate(games)
def bradley_terry(i: Any, j: Any, y: Any) -> None:
    skill = normals("skill", 4)
    observe(dist.Bernoulli(logits=skill[i] - skill[j]), y)


@conjugate(games)
def bradley_terry_with_a_reference(i: Any, j: Any, y: Any) -> None:
    skill, home = normals("skill", 4).at[0].set(0.0), normals("home")
    observe(dist.Bernoulli(jax.nn.sigmoid(home + skill[i] - skill[j])), y)


@conjugate(games)
def players_of_two_leagues(i: Any, j: Any, y: Any) -> None:
    skill = jnp.concatenate([normals("first", 2), normals("second", 2)])
    observe(dist.Normal(skill[i] - skill[j], 0.5), y)


@conjugate(games)
def matrix_factorisation(i: Any, j: Any, y: Any) -> None:
    u, v = normals("u", 4, 2), normals("v", 4, 2)
    observe(dist.Normal((u[i] * v[j]).sum(-1), 0.5), y)


@conjugate(annotations)
def dawid_skene_with_ids(y: Any, who: Any) -> None:
    pi, confusion = simplices("pi", 3), simplices("confusion", 5, 3, 3)
    with numpyro.plate(UNIT, y.shape[0]):
        c = numpyro.sample("c", dist.Categorical(pi))
        given = Vindex(confusion)[who, c[:, None], :]
        numpyro.sample("y", dist.Categorical(given).to_event(1), obs=y)


@conjugate(answers)
def sensitivity_and_specificity(y: Any) -> None:
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    hit = numpyro.sample("hit", dist.Beta(2.0, 1.0).expand([5]).to_event(1))
    reject = numpyro.sample("reject", dist.Beta(2.0, 1.0).expand([5]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        ill = numpyro.sample("ill", dist.Bernoulli(p))
        positive = jnp.where(ill[:, None] == 1, hit, 1 - reject)
        numpyro.sample("y", dist.Bernoulli(positive).to_event(1), obs=y)


@conjugate(coins)
def known_error_rates(y: Any) -> None:
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate(UNIT, y.shape[0]):
        ill = numpyro.sample("ill", dist.Bernoulli(p))
        numpyro.sample("y", dist.Bernoulli(0.9 * ill + 0.1 * (1 - ill)), obs=y)


@conjugate(grouped)
def intercepts_and_slopes_in_one_array(x: Any, y: Any, g: Any) -> None:
    mean, tau = normals("mean", 2), gammas("tau", 2)
    with numpyro.plate("groups", 4):
        ab = numpyro.sample("ab", dist.Normal(mean, tau**-0.5).to_event(1))
    mine = ab[g]
    observe(dist.Normal(mine[:, 0] + mine[:, 1] * x, 0.5), y)


@conjugate(grouped)
def correlated_intercepts_and_slopes(x: Any, y: Any, g: Any) -> None:
    mean = normals("mean", 2)
    precision = numpyro.sample("precision", dist.Wishart(4.0, jnp.eye(2)))
    with numpyro.plate("groups", 4):
        prior = dist.MultivariateNormal(mean, precision_matrix=precision)
        b = numpyro.sample("b", prior)
    features = jnp.stack([jnp.ones_like(x), x], axis=-1)
    observe(dist.Normal((b[g] * features).sum(-1), 0.5), y)
