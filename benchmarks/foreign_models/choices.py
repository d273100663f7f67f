"""Answers, grades and choices: logit, probit, ordered and multinomial likelihoods."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import expit, ndtr
from sklearn import datasets

from foreign_models._foreign import GELMAN_HILL, RETHINKING, Arguments, columns, foreign


@foreign(
    f"{GELMAN_HILL}, section 5.4; posteriordb wells_interaction",
    unit="households",
    arguments=lambda rng: {
        "dist100": rng.gamma(1.6, 0.3, 1500).astype(np.float32),
        "arsenic": (0.5 + rng.gamma(1.0, 1.1, 1500)).astype(np.float32),
        "educ4": rng.uniform(0.0, 4.0, 1500).astype(np.float32),
        "switched": np.zeros(1500, np.int32),
    },
    truth={"beta": jnp.array([-0.2, -0.6, 0.55, 0.17, -0.18])},
)
def wells(dist100: Any, arsenic: Any, educ4: Any, switched: Any) -> None:
    beta = numpyro.sample("beta", dist.Normal(0.0, 5.0).expand([5]).to_event(1))
    logits = beta[0] + beta[1] * dist100 + beta[2] * arsenic
    logits = logits + beta[3] * educ4 + beta[4] * dist100 * arsenic
    with numpyro.plate("households", switched.shape[0]):
        numpyro.sample("switched", dist.Bernoulli(logits=logits), obs=switched)


@foreign(
    f"{GELMAN_HILL}, section 5.1; priors of Gelman et al. 2008",
    unit="voters",
    arguments=lambda rng: {
        "income": rng.integers(-2, 3, 1200).astype(np.float32),
        "vote": np.zeros(1200, np.int32),
    },
    truth={"a": -0.4, "b": 0.33},
)
def presidential_vote(income: Any, vote: Any) -> None:
    """Vote on income, coded from -2 to 2."""
    a = numpyro.sample("a", dist.Cauchy(0.0, 10.0))
    b = numpyro.sample("b", dist.Cauchy(0.0, 2.5))
    with numpyro.plate("voters", vote.shape[0]):
        numpyro.sample("vote", dist.Bernoulli(logits=a + b * income), obs=vote)


def _breast_cancer(rng: np.random.Generator) -> Arguments:
    """Logarithms of ten features less public centres, and an intercept."""
    X, y = datasets.load_breast_cancer(return_X_y=True)
    centre = np.array([2.6, 2.9, 4.5, 6.3, -2.3, -2.4, -2.8, -3.4, -1.7, -2.8])
    X = (np.log(np.asarray(X)[:, :10] + 0.01) - centre) / 0.5
    X = np.column_stack([X, np.ones(len(X))])
    return {"data": X.astype(np.float32), "labels": np.asarray(y)}


@foreign(
    "NumPyro example Covtype (logistic regression)",
    unit="N",
    arguments=_breast_cancer,
    truth=None,
    rows="breast cancer of scikit-learn",
    licence="BSD-3-Clause",
)
def breast_cancer(data: Any, labels: Any) -> None:
    coefs = numpyro.sample("coefs", dist.Normal(jnp.zeros(data.shape[1]), 1.0))
    with numpyro.plate("N", data.shape[0]):
        numpyro.sample("obs", dist.Bernoulli(logits=data @ coefs), obs=labels)


@foreign(
    "BUGS volume 2, Beetles (logit)",
    unit="groups",
    arguments=lambda rng: {
        "x": rng.uniform(-0.11, 0.09, 400).astype(np.float32),
        "n": rng.integers(5, 12, 400),
        "r": np.zeros(400, np.int32),
    },
    truth={"alpha": 0.75, "beta": 34.0},
)
def beetles(x: Any, n: Any, r: Any) -> None:
    """Groups at doses less a public centre of 1.8, by a logit."""
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 100.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 100.0))
    with numpyro.plate("groups", r.shape[0]):
        numpyro.sample("r", dist.Binomial(n, expit(alpha + beta * x)), obs=r)


@foreign(
    "BUGS volume 2, Beetles (probit)",
    unit="groups",
    arguments=lambda rng: {
        "x": rng.uniform(-0.11, 0.09, 400).astype(np.float32),
        "n": rng.integers(5, 12, 400),
        "r": np.zeros(400, np.int32),
    },
    truth={"alpha": 0.45, "beta": 19.7},
)
def beetles_probit(x: Any, n: Any, r: Any) -> None:
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 100.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 100.0))
    with numpyro.plate("groups", r.shape[0]):
        numpyro.sample("r", dist.Binomial(n, ndtr(alpha + beta * x)), obs=r)


@foreign(
    "BUGS volume 2, Beetles (cloglog)",
    unit="groups",
    arguments=lambda rng: {
        "x": rng.uniform(-0.11, 0.09, 400).astype(np.float32),
        "n": rng.integers(5, 12, 400),
        "r": np.zeros(400, np.int32),
    },
    truth={"alpha": -0.05, "beta": 22.0},
)
def beetles_cloglog(x: Any, n: Any, r: Any) -> None:
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 100.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 100.0))
    with numpyro.plate("groups", r.shape[0]):
        p = 1 - jnp.exp(-jnp.exp(alpha + beta * x))
        numpyro.sample("r", dist.Binomial(n, p), obs=r)


@foreign(
    "BUGS volume 2, Air (units of 10 ppb)",
    unit="areas",
    arguments=lambda rng: {
        "Z": rng.uniform(0.5, 6.0, 400).astype(np.float32),
        "n": rng.integers(10, 60, 400),
        "y": np.zeros(400, np.int32),
    },
    truth={"theta": jnp.array([-1.0, 0.4])},
)
def air(Z: Any, n: Any, y: Any) -> None:
    """Berkson's error: exposure x scatters around a known line in what was measured."""
    theta = numpyro.sample("theta", dist.Normal(0.0, 30.0).expand([2]).to_event(1))
    with numpyro.plate("areas", y.shape[0]):
        X = numpyro.sample("X", dist.Normal(0.448 + 0.948 * Z, 0.17))
        numpyro.sample("y", dist.Binomial(n, logits=theta[0] + theta[1] * X), obs=y)


def _dogs(rng: np.random.Generator) -> Arguments:
    """Dogs in 12 trials, at A = 0.8 and B = 0.95; the first trial always shocks."""
    avoided, shocked = np.zeros((300, 13)), np.zeros((300, 13))
    y = np.zeros((300, 12), np.int32)
    for t in range(12):
        chance = 0.8 ** avoided[:, t] * 0.95 ** shocked[:, t]
        y[:, t] = rng.uniform(size=300) < chance
        avoided[:, t + 1] = avoided[:, t] + 1 - y[:, t]
        shocked[:, t + 1] = shocked[:, t] + y[:, t]
    return {
        "n_avoid": avoided[:, 1:12].astype(np.float32),
        "n_shock": shocked[:, 1:12].astype(np.float32),
        "y": y[:, 1:],
    }


@foreign(
    f"{GELMAN_HILL}, section 24.2; posteriordb dogs",
    unit="dogs",
    arguments=_dogs,
    truth=None,
)
def dogs(n_avoid: Any, n_shock: Any, y: Any) -> None:
    """Whether a dog was shocked, by how often it avoided it and was shocked before."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 100.0).expand([3]).to_event(1))
    with numpyro.plate("dogs", y.shape[0], dim=-2):
        p = beta[0] + beta[1] * n_avoid + beta[2] * n_shock
        with numpyro.plate("trials", y.shape[1], dim=-1):
            numpyro.sample("y", dist.Bernoulli(logits=p), obs=y)


@foreign(
    "BUGS volume 1, Dogs",
    unit="dogs",
    arguments=_dogs,
    truth=None,
)
def dogs_log(n_avoid: Any, n_shock: Any, y: Any) -> None:
    """The same by products: each avoidance and each shock lowers the chance."""
    A = numpyro.sample("A", dist.Uniform(0.0, 1.0))
    B = numpyro.sample("B", dist.Uniform(0.0, 1.0))
    with numpyro.plate("dogs", y.shape[0], dim=-2):
        log_p = n_avoid * jnp.log(A) + n_shock * jnp.log(B)
        with numpyro.plate("trials", y.shape[1], dim=-1):
            numpyro.sample("y", dist.Bernoulli(jnp.exp(log_p)), obs=y)


@foreign(
    f"{RETHINKING}, m12.4",
    unit="answers",
    arguments=lambda rng: {
        "A": rng.binomial(1, 0.4, 1500).astype(np.float32),
        "I": rng.binomial(1, 0.5, 1500).astype(np.float32),
        "C": rng.binomial(1, 0.2, 1500).astype(np.float32),
        "R": np.zeros(1500, np.int32),
    },
    truth={
        "bA": -0.7,
        "bI": -0.7,
        "bC": -0.95,
        "cutpoints": jnp.array([-2.8, -2.2, -1.5, -0.5, 0.2, 1.1]),
    },
)
def trolley(A: Any, I: Any, C: Any, R: Any) -> None:  # noqa: E741
    """Ordered answers of 7 grades."""
    bA = numpyro.sample("bA", dist.Normal(0.0, 0.5))
    bI = numpyro.sample("bI", dist.Normal(0.0, 0.5))
    bC = numpyro.sample("bC", dist.Normal(0.0, 0.5))
    cutpoints = numpyro.sample(
        "cutpoints",
        dist.TransformedDistribution(
            dist.Normal(0.0, 1.5).expand([6]).to_event(1),
            dist.transforms.OrderedTransform(),
        ),
    )
    with numpyro.plate("answers", R.shape[0]):
        phi = bA * A + bC * C + bI * I
        numpyro.sample("R", dist.OrderedLogistic(phi, cutpoints), obs=R)


@foreign(
    "Stan User's Guide, Multi-logit regression",
    unit="N",
    arguments=lambda rng: {
        "x": columns(rng, 800, 3),
        "y": np.zeros(800, np.int32),
    },
    truth={"beta": jnp.array([[1.0, 0.0, -1.0], [0.5, -1.0, 0.5], [-0.2, 0.1, 0.1]])},
    # A constant added to all classes changes nothing.
    identified=lambda draws: {
        "beta": draws["beta"] - np.mean(draws["beta"], -1, keepdims=True)
    },
)
def multi_logit(x: Any, y: Any) -> None:
    beta = numpyro.sample("beta", dist.Normal(0.0, 5.0).expand([3, 3]).to_event(2))
    with numpyro.plate("N", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=x @ beta), obs=y)


@foreign(
    f"{RETHINKING}, m11.13",
    unit="people",
    arguments=lambda rng: {
        "income": np.array([1.0, 2.0, 5.0], np.float32),
        "choice": np.zeros(500, np.int32),
    },
    public=("income",),
    truth={"a": jnp.array([0.5, 0.3]), "b": 0.1},
)
def career(income: Any, choice: Any) -> None:
    """Three careers, the third one the reference."""
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([2]))
    b = numpyro.sample("b", dist.HalfNormal(0.5))
    with numpyro.plate("people", choice.shape[0]):
        s1 = a[0] + b * income[0]
        s2 = a[1] + b * income[1]
        s3 = b * income[2]
        logits = jnp.stack([s1, s2, s3])
        numpyro.sample("choice", dist.Categorical(logits=logits), obs=choice)


def _iris(rng: np.random.Generator) -> Arguments:
    X, y = datasets.load_iris(return_X_y=True)
    centred = np.asarray(X) - np.array([5.8, 3.0, 3.8, 1.2])
    return {"x": centred.astype(np.float32), "y": np.asarray(y)}


@foreign(
    "Stan User's Guide, Multi-logit regression; Fisher 1936",
    unit="flowers",
    arguments=_iris,
    truth=None,
    rows="iris of scikit-learn",
    licence="BSD-3-Clause",
)
def iris(x: Any, y: Any) -> None:
    """Fisher's species by four measurements less public centres."""
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 5.0).expand([3]))
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([4, 3]))
    with numpyro.plate("flowers", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=alpha + x @ beta), obs=y)


@foreign(
    "Stan User's Guide, Naive Bayes classification",
    unit="documents",
    arguments=lambda rng: {
        "topic": rng.choice(4, (500, 1), p=[0.4, 0.3, 0.2, 0.1]),
        "words": np.zeros((500, 20), np.int32),
    },
    truth={
        "theta": jnp.array([0.4, 0.3, 0.2, 0.1]),
        "phi": jnp.array(np.random.default_rng(1).dirichlet(np.ones(12), 4)),
    },
)
def naive_bayes(topic: Any, words: Any) -> None:
    """Documents of 20 words in 12, with known topics."""
    theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(4)))
    with numpyro.plate("topics", 4):
        phi = numpyro.sample("phi", dist.Dirichlet(0.5 * jnp.ones(12)))
    with numpyro.plate("documents", topic.shape[0], dim=-2):
        numpyro.sample("topic", dist.Categorical(theta), obs=topic)
        with numpyro.plate("places", words.shape[1], dim=-1):
            numpyro.sample("words", dist.Categorical(phi[topic]), obs=words)
