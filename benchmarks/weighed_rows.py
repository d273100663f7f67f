"""Whether a clipped row should weigh less in its count: a simulation of means.

    python benchmarks/weighed_rows.py

A mean is the noisy sum of clipped values over a count. The count is the public number
of rows; or the sum of the shares of the rows that clipping left, which makes a weighted
likelihood, once without noise (which would not be private) and once as a further
coordinate of the joint vector, which lengthens it by √2. Noise is that of one release
at ε = 1, δ = 1e-5.
"""

from collections.abc import Callable

import numpy as np

from numpyro_vips.accounting.gaussian import largest_mu

NUM_ROWS, REPETITIONS = 5000, 400


def measure(
    draw: Callable[[np.random.Generator], np.ndarray], truth: float, norm: float
) -> dict[str, np.ndarray]:
    """The estimates of each kind, over the repetitions."""
    rng = np.random.default_rng(0)
    noise = 1.0 / largest_mu(1.0, 1e-5)
    found = []
    for _ in range(REPETITIONS):
        y = draw(rng)
        left = np.minimum(1.0, norm / np.maximum(np.abs(y), 1e-9))
        total, alone, joint, count = (left * y).sum(), *rng.normal(size=3)
        longer = np.sqrt(2.0) * noise
        found.append(
            (
                (total + noise * norm * alone) / NUM_ROWS,
                (total + noise * norm * alone) / left.sum(),
                (total + longer * norm * joint) / (left.sum() + longer * count),
            )
        )
    names = ("number of rows", "shares left", "noisy shares left")
    return dict(zip(names, np.array(found).T, strict=True))


def main() -> None:
    data = {
        "Poisson(3)": (lambda rng: rng.poisson(3.0, NUM_ROWS), 3.0, (2, 4, 8)),
        "Normal(45, 10)": (
            lambda rng: rng.normal(45.0, 10.0, NUM_ROWS),
            45.0,
            (40, 50, 60, 80),
        ),
    }
    print("| rows | clipped at | divided by | mean ± sd | root mean square error |")
    print("|---|---|---|---|---|")
    for name, (draw, truth, norms) in data.items():
        for norm in norms:
            for kind, values in measure(draw, truth, norm).items():
                error = np.sqrt(np.mean((values - truth) ** 2))
                print(
                    f"| {name} | {norm} | {kind} | {values.mean():.3f} ± "
                    f"{values.std():.3f} | {error:.3f} |"
                )


if __name__ == "__main__":
    main()
