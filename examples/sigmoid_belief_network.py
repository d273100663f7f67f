"""A private sigmoid belief network: binary images from binary hidden units.

    python examples/sigmoid_belief_network.py
    python examples/sigmoid_belief_network.py --data mnist_folder --num-units 50
    python examples/sigmoid_belief_network.py --data mnist_folder --paper 400 \\
        --accountant moments

Without options it reads the 8 by 8 digits bundled with scikit-learn. A folder with the
four idx files of MNIST (gzipped or not) is read as MNIST. `--paper S` follows section 7
of the VIPS paper: one epoch of minibatches of S images, noise for σ = 1, every
statistic in its own worst case; `--sigma inf` is the paper's run without noise.

The guarantee covers the posterior and all that follows from it. Accuracy, bound and
reconstructions are of test images, which are treated as public.
"""

import argparse
import dataclasses
import gzip
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import numpyro
import numpyro.distributions as dist
from sklearn.datasets import load_digits

import numpyro_vips as nv
from _fit_options import add_run_options, sampling_of, write_json

BIAS_SCALE = 3.0
WEIGHT_SCALE = 0.3
# Sweeps over the hidden units of an image.
LOCAL_STEPS = 5
NUM_TEST_IMAGES = 100
# Of how many pixels an image has one wrong, for the units of our mode: fewer than any
# has. Residuals are shortened, which costs less than the noise of a larger norm. (Best
# of 32, 128, 256 and 512 by `benchmarks/sbn.py --wrong`.)
WRONG = 256


def belief_network(num_units: int, prior: str = "tpbn") -> nv.private:
    """The model, for binary images in the rows of `y`.

    Args:
      num_units: Number K of hidden units.
      prior: `"tpbn"`, the three-parameter-beta-normal shrinkage prior of the paper as a
        scale mixture of Gammas, or `"gaussian"`.
    """

    @nv.private(unit="images")
    def model(y):
        num_pixels = y.shape[1]
        shape = (num_pixels, num_units)
        b: Any = numpyro.sample(
            "b", dist.Normal(0.0, BIAS_SCALE).expand([num_units]).to_event(1)
        )
        c: Any = numpyro.sample(
            "c", dist.Normal(0.0, BIAS_SCALE).expand([num_pixels]).to_event(1)
        )
        if prior == "tpbn":
            omega: Any = numpyro.sample("omega", dist.Gamma(0.5, 1.0))
            phi: Any = numpyro.sample(
                "phi", dist.Gamma(0.5, omega).expand([num_units]).to_event(1)
            )
            xi: Any = numpyro.sample(
                "xi", dist.Gamma(0.5, jnp.broadcast_to(phi, shape)).to_event(2)
            )
            zeta: Any = numpyro.sample("zeta", dist.Gamma(0.5, xi).to_event(2))
            W: Any = numpyro.sample("W", dist.Normal(0.0, jnp.sqrt(zeta)).to_event(2))
        else:
            W: Any = numpyro.sample(
                "W", dist.Normal(0.0, WEIGHT_SCALE).expand(shape).to_event(2)
            )
        with numpyro.plate("images", y.shape[0]):
            z: Any = numpyro.sample("z", dist.Bernoulli(logits=b).to_event(1))
            numpyro.sample("y", dist.Bernoulli(logits=z @ W.T + c).to_event(1), obs=y)

    return model


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images:
    """Binary images, one per row."""

    name: str
    train: np.ndarray
    test: np.ndarray


def load(path: str) -> Images:
    """Reads the images and binarises them at half of their public range.

    Raises:
      OSError, ValueError: There is no such folder, or a file is no idx file.
    """
    if path == "digits":
        pixels: Any = load_digits(return_X_y=True)[0]
        binary = (pixels >= 8).astype(np.uint8)  # Levels 0 to 16.
        order = np.random.default_rng(0).permutation(len(binary))
        return Images(name=path, train=binary[order[:1437]], test=binary[order[1437:]])
    folder = Path(path)
    train, test = (
        (_idx_images(folder, f"{part}-images-idx3-ubyte") >= 128).astype(np.uint8)
        for part in ("train", "t10k")
    )
    return Images(name="MNIST", train=train, test=test)


def _idx_images(folder: Path, name: str) -> np.ndarray:
    """The images of an idx file, a row each, as bytes."""
    packed = folder / f"{name}.gz"
    if packed.exists():
        content = gzip.decompress(packed.read_bytes())
    else:
        content = (folder / name).read_bytes()
    header = np.frombuffer(content[:16], ">i4")
    if len(header) < 4 or header[0] != 2051:
        raise ValueError(f"{name} is not an idx file of images.")
    count, height, width = header[1:]
    pixels = np.frombuffer(content, np.uint8, offset=16)
    return pixels.reshape(count, height * width)


# --- the two ways to fit --------------------------------------------------------------


def worst_norms(num_pixels: int, num_units: int) -> dict[str, float]:
    """How far each statistic can change when an image is replaced (VIPS, eqs 79 to 84).

    All entries lie in boxes: y and z in [0, 1], ξ in [0, 1/4]. A quadratic statistic is
    released with the factor 1/2 that it has in the log density, and ⟨W W⟩ without its
    diagonal, which repeats ⟨W c⟩. The seventh of the paper's, of ⟨b b⟩, follows from
    the globals alone and is not released.
    """
    J, K = num_pixels, num_units
    pairs = K * (K - 1) or 1  # A single unit makes no pairs; nothing is left out.
    return {
        "⟨b⟩": math.sqrt(K),
        "⟨c⟩": math.sqrt(J),
        "⟨c c⟩": math.sqrt(J) / 8,
        "⟨W c⟩": math.sqrt(J * K) / 4,
        "⟨W⟩": math.sqrt(J * K),
        "⟨W W⟩": math.sqrt(J * pairs) / 8,
    }


def clipping_norms(num_pixels: int, num_units: int) -> dict[str, float]:
    """Units of the statistics in our mode, in which rows are clipped jointly.

    With the bound of fixed curvature, what a row releases of ⟨W⟩ and ⟨c⟩ are
    residuals, small where an image is well explained. The units are norms of an image
    that uses an eighth of the units and has one pixel in `WRONG` wrong; those of the
    other statistics are larger, since noise in these only slows the approach to the
    optimum.
    """
    J, active = num_pixels, num_units / 8
    residual = math.sqrt(J / WRONG)
    return {
        "⟨b⟩": math.sqrt(num_units),
        "⟨c⟩": residual,
        "⟨W⟩": residual * math.sqrt(active),
        "⟨W c⟩": math.sqrt(active) / 2,
        "⟨W W⟩": active / 2,
    }


def paper_step_size(step: int) -> float:
    """ρ_t = (1 + t)^-0.7; the paper gives the form and no constants for this model."""
    return (1.0 + step) ** -0.7


def fit(images: np.ndarray, args: argparse.Namespace) -> nv.PrivateVIResult:
    """Fits the model to the rows as the options say."""
    num_rows, num_pixels = images.shape
    settings: dict[str, Any] = {
        "progress_bar": not args.no_progress,
        "insecure_seed": args.insecure_seed,
    }
    without_noise = math.isinf(args.sigma or 0.0) or math.isinf(args.epsilon)
    if args.paper is not None:
        settings |= {
            "engine": nv.VIPS(
                local_steps=args.local_steps,
                step_size=paper_step_size,
                release_once=False,
            ),
            "sampling": nv.WithoutReplacement(args.paper / num_rows),
            "num_steps": num_rows // args.paper,
        }
    else:
        # Without noise the tighter bound is better.
        bound = "polya-gamma" if without_noise else "fixed-curvature"
        settings |= {
            "engine": nv.VIPS(local_steps=args.local_steps, augmentation=bound),
            "sampling": sampling_of(args.sampling, args.sampling_rate),
            "num_steps": args.num_steps,
        }
    if without_noise:
        budget = nv.PrivacyBudget(math.inf)
    elif args.paper is not None:
        budget = nv.PrivacyBudget(math.inf, accountant=args.accountant)
        settings |= {
            "clipping_norm": worst_norms(num_pixels, args.num_units),
            "noise_multiplier": paper_noise_multiplier(args.sigma or 1.0),
            "delta": args.delta,
        }
    else:
        budget = nv.PrivacyBudget(args.epsilon, args.delta)
        settings["clipping_norm"] = clipping_norms(num_pixels, args.num_units)
        if args.sigma is not None:
            settings["noise_multiplier"] = args.sigma
    vi = nv.PrivateVI(
        belief_network(args.num_units, args.prior), budget=budget, **settings
    )
    if not args.no_progress:
        print(vi.explain(images))
    return vi.run(jax.random.key(args.seed), images)


def paper_noise_multiplier(sigma: float) -> float:
    """What makes the mechanism's noise the paper's √7·σ in units of `worst_norms`.

    The mechanism's own sensitivity is √6, six statistics that change by a unit each.
    The paper's is √7, with the public one; `paper_epsilon` is the price by it.
    """
    return sigma * math.sqrt(7.0 / 6.0)


def paper_epsilon(args: argparse.Namespace, num_rows: int) -> float:
    """ε of a run in paper mode, from the sensitivity √7 of the paper."""
    return nv.accounting.epsilon(
        noise_multiplier=args.sigma or 1.0,
        sampling_rate=args.paper / num_rows,
        num_steps=num_rows // args.paper,
        delta=args.delta,
        sampling="without_replacement",
        accountant=args.accountant,
    )


# --- how good it is -------------------------------------------------------------------


def reconstructions(result: nv.PrivateVIResult, images: np.ndarray) -> np.ndarray:
    """Pixel probabilities given the posterior means of an image's units and weights."""
    z = np.asarray(result.local_posterior(images)["z"].probs)
    mean = np.asarray(result.params["c+W/loc"])
    logits = z @ mean[:, 1:].T + mean[:, 0]
    return 1.0 / (1.0 + np.exp(-logits))


def evaluate(
    result: nv.PrivateVIResult, test: np.ndarray, seeds: int
) -> tuple[list[float], list[float]]:
    """Section 7.1: accuracy of binarised reconstructions, and the bound per pixel.

    Both on 100 test images, drawn anew for each seed.
    """
    count = min(NUM_TEST_IMAGES, len(test))
    chosen = [
        np.random.default_rng(seed).choice(len(test), count, replace=False)
        for seed in range(seeds)
    ]
    # One call for all of them: each would compile anew.
    used, places = np.unique(np.concatenate(chosen), return_inverse=True)
    images = test[used]
    agrees = np.mean((reconstructions(result, images) > 0.5) == images, axis=1)
    bound = result.elbo(images) / test.shape[1]
    by_seed = places.reshape(seeds, count)
    return agrees[by_seed].mean(1).tolist(), bound[by_seed].mean(1).tolist()


def plot(result: nv.PrivateVIResult, test: np.ndarray, path: Path) -> None:
    """Filters of the units with the largest weights; images and reconstructions."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    mean = np.asarray(result.params["c+W/loc"])[:, 1:]
    side = math.isqrt(len(mean))
    largest = np.argsort(-np.linalg.norm(mean, axis=0))[:16]
    shown = test[:16]
    rebuilt = reconstructions(result, shown)
    figure, axes = pyplot.subplots(3, 16, figsize=(16, 3.6))
    rows = (
        ("filters", mean.T[largest], "RdBu_r"),
        ("images", shown, "gray"),
        ("reconstructions", rebuilt, "gray"),
    )
    for line, (label, pictures, colours) in zip(axes, rows, strict=True):
        for axis in line:
            axis.set_axis_off()
        for axis, picture in zip(line, pictures, strict=False):
            axis.imshow(picture.reshape(side, side), cmap=colours)
        line[0].set_title(label, loc="left", fontsize=9)
    figure.savefig(str(path), bbox_inches="tight", dpi=120)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the example and returns what `--json` writes."""
    parser = _parser()
    args = parser.parse_args(arguments)
    try:
        images = load(args.data)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if args.prior is None:
        args.prior = "gaussian" if args.data == "digits" else "tpbn"
    num_rows, num_pixels = images.train.shape
    print(
        f"{images.name}: {num_rows} images to train on, {len(images.test)} to test on, "
        f"{num_pixels} pixels"
    )
    start = time.perf_counter()
    result = fit(images.train, args)
    seconds = time.perf_counter() - start

    accuracies, bounds = evaluate(result, images.test, args.test_seeds)
    args.output.mkdir(parents=True, exist_ok=True)
    plot(result, images.test, args.output / "belief_network.png")
    idata = result.to_arviz(jax.random.key(1), num_samples=args.num_draws)
    idata.to_netcdf(str(args.output / "posterior.nc"))
    is_paper = args.paper is not None and result.privacy.events
    epsilon = paper_epsilon(args, num_rows) if is_paper else result.privacy.epsilon
    report = {
        "data": images.name,
        "prior": args.prior,
        "num_units": args.num_units,
        "paper": args.paper,
        "epsilon": "inf" if math.isinf(epsilon) else epsilon,
        "delta": result.privacy.delta,
        "accuracy": float(np.mean(accuracies)),
        "accuracy_sd": float(np.std(accuracies)),
        "bound_per_pixel": float(np.mean(bounds)),
        "seconds": seconds,
        "insecure_seed": args.insecure_seed,
    }
    print(result.privacy)
    if is_paper:
        print(
            f"The noise costs epsilon={epsilon:.3f} ({args.accountant}) by the paper's "
            "own sensitivity; the statement above has that of what is released."
        )
    print(
        f"pixel accuracy on test images: {report['accuracy']:.4f} "
        f"(standard deviation {report['accuracy_sd']:.4f} over {args.test_seeds} "
        f"draws of {NUM_TEST_IMAGES})\n"
        f"bound per pixel: {report['bound_per_pixel']:.4f}\n"
        f"{seconds:.1f} s; posterior.nc and belief_network.png are in {args.output}"
    )
    write_json(report, args)
    return report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="digits", help="digits, or MNIST's folder")
    parser.add_argument("--num-units", type=int, default=20, metavar="K")
    parser.add_argument(
        "--prior",
        choices=("tpbn", "gaussian"),
        help="default: tpbn for MNIST, gaussian for the few digits, of which the "
        "shrinkage prior would leave most units unused",
    )
    parser.add_argument("--epsilon", type=float, default=8.0, help="inf: not private")
    parser.add_argument("--delta", type=float, default=1e-4)
    parser.add_argument(
        "--sigma",
        type=float,
        help="noise multiplier, in place of the smallest that --epsilon affords",
    )
    parser.add_argument(
        "--sampling",
        choices=("poisson", "full", "without_replacement"),
        default="poisson",
    )
    parser.add_argument("--sampling-rate", type=float)
    parser.add_argument("--num-steps", type=int, default=10)
    parser.add_argument("--local-steps", type=int, default=LOCAL_STEPS)
    parser.add_argument(
        "--paper", type=int, metavar="S", help="minibatches of the paper"
    )
    parser.add_argument(
        "--accountant", choices=("pld", "moments", "strong"), default="moments"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random start")
    parser.add_argument("--test-seeds", type=int, default=10)
    parser.add_argument("--num-draws", type=int, default=20)
    add_run_options(parser)
    return parser


if __name__ == "__main__":
    main()
