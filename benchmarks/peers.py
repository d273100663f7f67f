"""Default fits beside those of other packages, on the same generated tables.

    python benchmarks/peers.py topics
    python benchmarks/peers.py logistic

`topics` compares topic models without noise with scikit-learn's. `logistic` compares
private regressions with diffprivlib's, which gets an environment of its own in
`.venv-peers/`. Its guarantee is pure: ε with δ = 0, where fits here have δ = 1e-5, so
its noise grows faster with the number of columns. It is told the norm of the rows.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from _generated_tables import logistic_table
from frontier import logistic_fit
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.metrics import roc_auc_score

import numpyro_vips as nv

ENVIRONMENTS = Path(__file__).parents[1] / ".venv-peers"
# scikit-learn 1.6 took away a name that diffprivlib 0.6.6 imports.
DIFFPRIVLIB = ("diffprivlib==0.6.6", "scikit-learn<1.6")
EPSILONS = (0.1, 1.0)
REPEATS = 3

FITS = """
import json, sys, warnings
import numpy as np
from diffprivlib.models import LogisticRegression

warnings.simplefilter("ignore")
given = np.load(sys.argv[1])
X, y = given["X"].astype(float), given["y"]
found = []
for seed in range(int(sys.argv[3])):
    model = LogisticRegression(
        epsilon=float(sys.argv[2]),
        data_norm=1.0,
        fit_intercept=False,
        random_state=seed,
    )
    found.append(np.ravel(model.fit(X, y).coef_).tolist())
print(json.dumps(found))
"""


def diffprivlib(X: np.ndarray, y: np.ndarray, epsilon: float) -> np.ndarray:
    """Coefficients of private fits by diffprivlib, (repeats, columns)."""
    python = ENVIRONMENTS / "diffprivlib" / "bin" / "python"
    if not python.exists():
        folder = python.parents[1]
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *DIFFPRIVLIB]
        subprocess.run(install, check=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npz"
        np.savez(path, X=X, y=y)
        arguments = (path, epsilon, REPEATS)
        run = subprocess.run(
            [str(python), "-c", FITS, *map(str, arguments)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    return np.array(json.loads(run.stdout))


def logistic() -> None:
    """Test AUC, means of three fits."""
    print("| table | ε | VIPS | diffprivlib |")
    print("|---|---|---|---|")
    for name in ("like A", "like C"):
        table = logistic_table(name)
        for epsilon in EPSILONS:
            ours = [logistic_fit(table, epsilon, s, "vips") for s in range(REPEATS)]
            theirs = [
                roc_auc_score(table.test_y, table.test_X @ w)
                for w in diffprivlib(table.X, table.y, epsilon)
            ]
            means = f"{np.mean(ours):.3f} | {np.mean(theirs):.3f}"
            print(f"| {name} | {epsilon:g} | {means} |", flush=True)


NUM_TOPICS, NUM_WORDS, NUM_DOCUMENTS, LENGTH = 20, 1000, 5000, 100


@nv.private(unit="documents")
def topic_model(counts: Any) -> None:
    with numpyro.plate("topic", NUM_TOPICS):
        beta = numpyro.sample("beta", dist.Dirichlet(jnp.full(NUM_WORDS, 0.1)))
    with numpyro.plate("documents", counts.shape[0]):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.full(NUM_TOPICS, 0.1)))
        total = counts.sum(-1).astype(int)
        numpyro.sample("x", dist.Multinomial(total, theta @ beta), obs=counts)


def topics() -> None:
    """Perplexity of held-out documents and seconds, both without noise.

    Both take 20 passes over the documents. Perplexity is exact given the topics' means
    and the shares that each package finds for a document.
    """
    rng = np.random.default_rng(0)
    beta = rng.dirichlet(np.full(NUM_WORDS, 0.05), size=NUM_TOPICS)
    shares = rng.dirichlet(np.full(NUM_TOPICS, 0.1), size=NUM_DOCUMENTS + 500)
    counts = np.stack([rng.multinomial(LENGTH, p) for p in shares @ beta])
    held_out, training = counts[:500], counts[500:].astype(np.float32)

    def perplexity(shares: np.ndarray, words: np.ndarray) -> float:
        return float(
            np.exp(-(held_out * np.log(shares @ words)).sum() / held_out.sum())
        )

    vi = nv.PrivateVI(
        topic_model,
        budget=nv.PrivacyBudget(math.inf),
        num_steps=20,
        max_nonzeros=LENGTH,
        progress_bar=False,
    )
    ours, result = _timed(lambda: vi.run(jax.random.key(0), training))
    prepared, result = _timed(lambda: vi.run(jax.random.key(0), training))
    found = np.asarray(result.local_posterior(held_out.astype("f4"))["theta"].mean)
    words = np.asarray(result.posterior.moments()["beta"].mean)
    peer = LatentDirichletAllocation(
        NUM_TOPICS,
        doc_topic_prior=0.1,
        topic_word_prior=0.1,
        max_iter=20,
        random_state=0,
    )
    theirs, _ = _timed(lambda: peer.fit(training))
    their_words = peer.components_ / peer.components_.sum(1, keepdims=True)
    print("| | perplexity | seconds |")
    print("|---|---|---|")
    own = perplexity(found, words)
    print(f"| VIPS without noise, first fit | {own:.1f} | {ours:.1f} |")
    print(f"| the same, prepared | {own:.1f} | {prepared:.1f} |")
    their = perplexity(peer.transform(held_out), their_words)
    print(f"| scikit-learn | {their:.1f} | {theirs:.1f} |")
    truth = perplexity(shares[:500], beta)
    print(f"| true topics and shares | {truth:.1f} | |")


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = run()
    return time.perf_counter() - start, found


KINDS = {"topics": topics, "logistic": logistic}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="+", choices=KINDS)
    for kind in parser.parse_args().kinds:
        KINDS[kind]()


if __name__ == "__main__":
    main()
