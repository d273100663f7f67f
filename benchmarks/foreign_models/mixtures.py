"""Mixtures, topics, annotators and latent factors."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from foreign_models._foreign import Draws, foreign, placeholder


@foreign(
    "Stan case study Identifying mixture models; posteriordb low_dim_gauss_mix",
    unit="N",
    arguments=lambda rng: {"y": placeholder(1000)},
    truth={
        "mu": jnp.array([-2.75, 2.75]),
        "sigma": jnp.array([1.0, 1.0]),
        "theta": 0.4,
    },
)
def two_normals(y: Any) -> None:
    """Ordered means, and a mixture summed out."""
    mu = numpyro.sample(
        "mu",
        dist.TransformedDistribution(
            dist.Normal(0.0, 2.0).expand([2]).to_event(1),
            dist.transforms.OrderedTransform(),
        ),
    )
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
    theta = numpyro.sample("theta", dist.Beta(5.0, 5.0))
    with numpyro.plate("N", y.shape[0]):
        numpyro.sample(
            "y",
            dist.MixtureSameFamily(
                dist.Categorical(jnp.stack([theta, 1 - theta])), dist.Normal(mu, sigma)
            ),
            obs=y,
        )


def _sorted_by(key: str, *others: str) -> Any:
    """Components in the order of `key`, with the same order for the others."""

    def identified(draws: Draws) -> Draws:
        order = np.argsort(draws[key], -1)
        switched = (key, *others)
        return {
            name: np.take_along_axis(np.asarray(value), order, -1)
            if name in switched
            else value
            for name, value in draws.items()
        }

    return identified


def _gmm_sorted(draws: Draws) -> Draws:
    return _sorted_by("locs", "weights")(draws)


@foreign(
    "NumPyro tutorial Gaussian mixture model",
    unit="data",
    arguments=lambda rng: {
        "data": np.where(
            rng.uniform(size=800) < 0.4,
            rng.normal(0.5, 1.2, 800),
            rng.normal(9.5, 1.2, 800),
        ).astype(np.float32)
    },
    truth=None,
    identified=_gmm_sorted,
)
def gmm(data: Any) -> None:
    """Two normals with one scale and assignments."""
    weights = numpyro.sample("weights", dist.Dirichlet(0.5 * jnp.ones(2)))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 2.0))
    with numpyro.plate("components", 2):
        locs = numpyro.sample("locs", dist.Normal(0.0, 10.0))
    with numpyro.plate("data", len(data)):
        assignment = numpyro.sample(
            "assignment",
            dist.Categorical(weights),
            infer={"enumerate": "parallel"},
        )
        numpyro.sample("obs", dist.Normal(locs[assignment], scale), obs=data)


@foreign(
    "BUGS volume 2, Eyes",
    unit="N",
    arguments=lambda rng: {"y": placeholder(500)},
    truth={
        "P": jnp.array([0.6, 0.4]),
        "lambda1": 536.8,
        "theta": 12.0,
        "tau": 0.07,
    },
)
def eyes(y: Any) -> None:
    """Two groups of peaks: the second lies above the first by theta."""
    P = numpyro.sample("P", dist.Dirichlet(jnp.ones(2)))
    lambda1 = numpyro.sample("lambda1", dist.Normal(0.0, 1000.0))
    theta = numpyro.sample("theta", dist.HalfNormal(1000.0))
    tau = numpyro.sample("tau", dist.Gamma(1e-3, 1e-3))
    lam = jnp.stack([lambda1, lambda1 + theta])
    with numpyro.plate("N", y.shape[0]):
        T = numpyro.sample("T", dist.Categorical(P), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(lam[T], 1 / jnp.sqrt(tau)), obs=y)


@foreign(
    "BUGS volume 2, Biopsies",
    unit="patients",
    arguments=lambda rng: {"counts": np.tile(np.array([2, 0, 0, 0]), (600, 1))},
    truth={
        "p": jnp.array([0.2, 0.3, 0.3, 0.2]),
        "error2": jnp.array([0.4, 0.6]),
        "error3": jnp.array([0.2, 0.3, 0.5]),
        "error4": jnp.array([0.1, 0.1, 0.2, 0.6]),
    },
)
def biopsies(counts: Any) -> None:
    """A true state of a patient, and two biopsies that may show a milder one."""
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(4)))
    error2 = numpyro.sample("error2", dist.Dirichlet(jnp.ones(2)))
    error3 = numpyro.sample("error3", dist.Dirichlet(jnp.ones(3)))
    error4 = numpyro.sample("error4", dist.Dirichlet(jnp.ones(4)))
    error = jnp.stack(
        [
            jnp.array([1.0, 0.0, 0.0, 0.0]),
            jnp.concatenate([error2, jnp.zeros(2)]),
            jnp.concatenate([error3, jnp.zeros(1)]),
            error4,
        ]
    )
    with numpyro.plate("patients", counts.shape[0]):
        true = numpyro.sample(
            "true", dist.Categorical(p), infer={"enumerate": "parallel"}
        )
        numpyro.sample("counts", dist.Multinomial(2, error[true]), obs=counts)


def _kinds_sorted(draws: Draws) -> Draws:
    order = np.argsort(draws["R"], -1)
    P = np.take_along_axis(np.asarray(draws["P"]), order[..., None], -2)
    return {"R": np.sort(draws["R"], -1), "P": P}


@foreign(
    "BayesPy documentation, Bernoulli mixture model",
    unit="people",
    arguments=lambda rng: {"X": np.zeros((1000, 8), np.int32)},
    truth={
        "R": jnp.array([0.2, 0.3, 0.5]),
        "P": jnp.array([[0.9] * 4 + [0.1] * 4, [0.1] * 4 + [0.9] * 4, [0.8, 0.2] * 4]),
    },
    identified=_kinds_sorted,
)
def bernoulli_mixture(X: Any) -> None:
    """Binary questions to people of three kinds."""
    R = numpyro.sample("R", dist.Dirichlet(jnp.full(3, 1e-1)))
    P = numpyro.sample("P", dist.Beta(0.5, 0.5).expand([3, X.shape[1]]).to_event(2))
    with numpyro.plate("people", X.shape[0]):
        Z = numpyro.sample("Z", dist.Categorical(R), infer={"enumerate": "parallel"})
        numpyro.sample("X", dist.Bernoulli(P[Z]).to_event(1), obs=X)


def _clusters_sorted(draws: Draws) -> Draws:
    order = np.argsort(np.asarray(draws["mu"])[..., 0], -1)
    return {
        "alpha": np.take_along_axis(np.asarray(draws["alpha"]), order, -1),
        "mu": np.take_along_axis(np.asarray(draws["mu"]), order[..., None], -2),
    }


@foreign(
    "BayesPy documentation, Gaussian mixture model",
    unit="points",
    arguments=lambda rng: {"y": placeholder(900, 2)},
    truth={
        "alpha": jnp.array([0.3, 0.3, 0.4]),
        "mu": jnp.array([[-4.0, 0.0], [0.0, 3.0], [4.0, -1.0]]),
        "Lambda": jnp.array([[[1.5, 0.2], [0.2, 1.0]]] * 3),
    },
    identified=_clusters_sorted,
)
def gaussian_mixture(y: Any) -> None:
    """Points of the plane in three clusters with precision matrices."""
    alpha = numpyro.sample("alpha", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("clusters", 3):
        mu = numpyro.sample(
            "mu", dist.MultivariateNormal(jnp.zeros(2), 10 * jnp.eye(2))
        )
        Lambda = numpyro.sample("Lambda", dist.Wishart(3.0, jnp.eye(2)))
    with numpyro.plate("points", y.shape[0]):
        z = numpyro.sample(
            "z", dist.Categorical(alpha), infer={"enumerate": "parallel"}
        )
        numpyro.sample(
            "y", dist.MultivariateNormal(mu[z], precision_matrix=Lambda[z]), obs=y
        )


def _without_sign(draws: Draws) -> Draws:
    """Loadings up to a common sign: products with the first one."""
    C = np.asarray(draws["C"])
    return {"CC": C[..., :1] * C, "tau": draws["tau"]}


@foreign(
    "BayesPy documentation, Principal component analysis",
    unit="points",
    arguments=lambda rng: {"y": placeholder(500, 5)},
    truth={
        "alpha": 1.0,
        "C": jnp.array([1.5, -1.0, 0.5, 1.2, 0.3]),
        "tau": 2.0,
    },
    identified=_without_sign,
)
def ppca(y: Any) -> None:
    """Five measurements of one factor and noise."""
    alpha = numpyro.sample("alpha", dist.Gamma(1e-3, 1e-3))
    C = numpyro.sample("C", dist.Normal(0.0, alpha**-0.5).expand([5]).to_event(1))
    tau = numpyro.sample("tau", dist.Gamma(1e-3, 1e-3))
    with numpyro.plate("points", y.shape[0]):
        X = numpyro.sample("X", dist.Normal(0.0, 1.0))
        F = X[..., None] * C
        numpyro.sample("y", dist.Normal(F, tau**-0.5).to_event(1), obs=y)


@foreign(
    "Lee 2007, Structural equation modeling; blavaan, one factor",
    unit="people",
    arguments=lambda rng: {"Y": placeholder(600, 6)},
    truth={
        "mu": jnp.array([1.0, 0.0, -1.0, 0.5, 0.0, 2.0]),
        "first": 0.9,
        "rest": jnp.array([0.7, 0.8, -0.6, 0.5, 0.9]),
        "psi": jnp.array([0.5, 0.6, 0.4, 0.7, 0.5, 0.8]),
    },
)
def factor_analysis(Y: Any) -> None:
    """One factor; the first loading is positive, each item has its own noise."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0).expand([6]).to_event(1))
    first = numpyro.sample("first", dist.HalfNormal(1.0))
    rest = numpyro.sample("rest", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
    psi = numpyro.sample("psi", dist.InverseGamma(2.0, 1.0).expand([6]).to_event(1))
    loadings = jnp.concatenate([first[None], rest])
    with numpyro.plate("people", Y.shape[0]):
        eta = numpyro.sample("eta", dist.Normal(0.0, 1.0))
        mean = mu + eta[..., None] * loadings
        numpyro.sample("Y", dist.Normal(mean, jnp.sqrt(psi)).to_event(1), obs=Y)


TOPICS = np.array(
    [
        [0.3, 0.3, 0.2, 0.1, 0.04, 0.02, 0.02, 0.02],
        [0.02, 0.02, 0.02, 0.04, 0.1, 0.2, 0.3, 0.3],
    ]
)


def _topics_sorted(draws: Draws) -> Draws:
    phi = np.asarray(draws["phi"])
    order = np.argsort(phi[..., 0], -1)
    return {"phi": np.take_along_axis(phi, order[..., None], -2)}


@foreign(
    "Stan User's Guide, Latent Dirichlet allocation; posteriordb ldaK2",
    unit="documents",
    arguments=lambda rng: {"words": np.zeros((300, 30), np.int32)},
    truth={"phi": TOPICS},
    identified=_topics_sorted,
)
def lda(words: Any) -> None:
    """Documents of 30 words of a vocabulary of 8, two topics."""
    with numpyro.plate("topics", 2):
        phi = numpyro.sample("phi", dist.Dirichlet(jnp.ones(8)))
    with numpyro.plate("documents", words.shape[0], dim=-2):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(2)))
        with numpyro.plate("places", words.shape[1], dim=-1):
            z = numpyro.sample(
                "z", dist.Categorical(theta), infer={"enumerate": "parallel"}
            )
            numpyro.sample("words", dist.Categorical(phi[z]), obs=words)


@foreign(
    "Stan User's Guide, Summing out the discrete parameters of LDA",
    unit="documents",
    arguments=lambda rng: {"words": np.zeros((300, 30), np.int32)},
    truth={"phi": TOPICS},
    identified=_topics_sorted,
)
def lda_summed_out(words: Any) -> None:
    """The same with the topics of words summed out, as for NUTS."""
    with numpyro.plate("topics", 2):
        phi = numpyro.sample("phi", dist.Dirichlet(jnp.ones(8)))
    with numpyro.plate("documents", words.shape[0], dim=-2):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(2)))
        with numpyro.plate("places", words.shape[1], dim=-1):
            numpyro.sample("words", dist.Categorical(theta @ phi), obs=words)


def _confusion(rng: np.random.Generator) -> np.ndarray:
    share = rng.uniform(0.1, 0.4, (5, 1, 1))
    return ((1 - share) * np.eye(3) + share / 3).astype(np.float32)


PI = np.array([0.5, 0.3, 0.2], np.float32)


def _classes_sorted(matrices: str) -> Any:
    """Frequent classes first; of the matrices, the answers keep their names."""

    def identified(draws: Draws) -> Draws:
        pi = np.asarray(draws["pi"])
        order = np.argsort(-pi, -1)
        values = np.asarray(draws[matrices])
        axes = tuple(range(1, values.ndim - 2))
        rows = np.expand_dims(order[..., None], axes)
        return {
            "pi": np.take_along_axis(pi, order, -1),
            matrices: np.take_along_axis(values, rows, -2),
        }

    return identified


@foreign(
    "NumPyro example Bayesian models of annotation; Paun et al. 2018",
    unit="item",
    arguments=lambda rng: {"annotations": np.zeros((800, 5), np.int32)},
    truth={"beta": _confusion(np.random.default_rng(2)), "pi": PI},
    identified=_classes_sorted("beta"),
)
def dawid_skene(annotations: Any) -> None:
    """Five annotators, each with a confusion matrix, and three classes."""
    with numpyro.plate("annotator", 5, dim=-2), numpyro.plate("class", 3):
        beta = numpyro.sample("beta", dist.Dirichlet(jnp.ones(3)))
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("item", annotations.shape[0], dim=-2):
        c = numpyro.sample("c", dist.Categorical(pi), infer={"enumerate": "parallel"})
        with numpyro.plate("position", 5, dim=-1):
            numpyro.sample(
                "annotations",
                dist.Categorical(beta[jnp.arange(5), c]),
                obs=annotations,
            )


ZETA = np.array([[0.8, 0.1, 0.1], [0.15, 0.7, 0.15], [0.1, 0.2, 0.7]], np.float32)


@foreign(
    "NumPyro example Bayesian models of annotation; Paun et al. 2018",
    unit="item",
    arguments=lambda rng: {"annotations": np.zeros((800, 5), np.int32)},
    truth={"zeta": ZETA, "pi": PI},
    identified=_classes_sorted("zeta"),
)
def multinomial_annotations(annotations: Any) -> None:
    """Annotators who are all alike."""
    with numpyro.plate("class", 3):
        zeta = numpyro.sample("zeta", dist.Dirichlet(jnp.ones(3)))
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("item", annotations.shape[0], dim=-2):
        c = numpyro.sample("c", dist.Categorical(pi), infer={"enumerate": "parallel"})
        with numpyro.plate("position", annotations.shape[1], dim=-1):
            numpyro.sample("annotations", dist.Categorical(zeta[c]), obs=annotations)
