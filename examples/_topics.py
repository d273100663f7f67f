"""What the topic model example measures, prints and draws."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import scipy.sparse as sp

import numpyro_vips as nv

TOP_WORDS = 10


def held_out_perplexity(
    result: nv.PrivateVIResult, ids: np.ndarray, counts: np.ndarray
) -> float:
    """Upper bound on the perplexity of held-out documents, from released topics.

    Hoffman, Blei and Bach (2010), equation 32 of the VIPS paper: exp(−Σ_d L_d / Σ_d
    n_d), where n_d is the number of words of document d and

        L_d = E_q[log p(θ_d)] + E_q[log p(z_d | θ_d)] + E_q[log p(w_d | z_d, β)]
              − E_q[log q(θ_d)] − E_q[log q(z_d)].

    q(θ_d) and q(z_d) are fitted to the document, q(β) is the released posterior and
    enters through E[log β]. The divergence of q(β) from its prior is not in it, nor is
    a multinomial coefficient: a document is a sequence of words.

    Args:
      result: A fit of the topic model.
      ids, counts: Held-out documents (documents, words), padded with counts of 0.
    """
    bounds = np.asarray(result.elbo(ids, counts), np.float64)
    return float(np.exp(-bounds.sum() / counts.sum(dtype=np.int64)))


def unigram_perplexity(training: sp.csr_matrix, held_out: sp.csr_matrix) -> float:
    """Perplexity of the word frequencies of the training documents; not private.

    Exact, not a bound. Every word is counted once more, so that none has frequency 0.
    """
    totals = np.asarray(training.sum(axis=0), np.float64).ravel() + 1.0
    tested = np.asarray(held_out.sum(axis=0), np.float64).ravel()
    log_frequency = np.log(totals) - np.log(totals.sum())
    return float(np.exp(-(tested @ log_frequency) / tested.sum()))


def topic_words(result: nv.PrivateVIResult) -> np.ndarray:
    """Posterior mean of each topic's word probabilities, (topics, words)."""
    concentration = np.asarray(result.params["beta/concentration"], np.float64)
    return concentration / concentration.sum(axis=1, keepdims=True)


def top_words(topics: np.ndarray, number: int = TOP_WORDS) -> np.ndarray:
    """Columns of the most probable words of each topic, (topics, number)."""
    return np.argsort(-topics, axis=1, kind="stable")[:, :number]


def overlap(topics: np.ndarray, reference: np.ndarray) -> float:
    """Mean share of a topic's top 10 words that its best reference topic has too.

    A reference topic may be the best match of several topics.
    """
    first, second = top_words(topics), top_words(reference)
    common = (first[:, None, :, None] == second[None, :, None, :]).any(-1).sum(-1)
    return float(common.max(axis=1).mean() / first.shape[1])


def topic_table(
    topics: np.ndarray, vocabulary: Sequence[str], longest: int = 20
) -> str:
    """The top words of each topic with their probabilities."""
    lines = []
    for number, columns in enumerate(top_words(topics)[:longest]):
        words = "  ".join(f"{vocabulary[c]} {topics[number, c]:.4f}" for c in columns)
        lines.append(f"topic {number:2d}:  {words}")
    if len(topics) > longest:
        lines.append(f"({longest} of {len(topics)} topics; posterior.nc holds all)")
    return "\n".join(lines)


def summary(report: dict[str, Any]) -> str:
    """Perplexities as a table, for the holder of the data."""
    lines = [f"{'held-out perplexity':<24}{'epsilon':>10}{'steps':>7}{'bound':>10}"]
    for found in report["fits"]:
        epsilon = found["epsilon"]
        shown = epsilon if epsilon == "inf" else f"{epsilon:.3g}"
        line = f"{found['method']:<24}{shown:>10}{found['num_steps']:>7}"
        line += f"{found['perplexity']:>10.1f}"
        if "epsilons" in found:
            counted = found["epsilons"]["as_the_paper_counted"]
            line += f"   (epsilon as the paper counted: {counted:.4g})"
        lines.append(line)
    lines.append(f"{'unigram':<24}{'inf':>10}{'':>7}{report['unigram']:>10.1f}")
    return "\n".join(lines)


def draw(report: dict[str, Any], folder: Path) -> None:
    """Both plots: perplexity against ε, and by step."""
    levels = {"unigram": report["unigram"]}
    by_epsilon: dict[str, list[tuple[float, float]]] = {}
    by_step: dict[str, list[float]] = {}
    for found in report["fits"]:
        name, epsilon = found["method"], found["epsilon"]
        if epsilon == "inf":
            levels[name] = found["perplexity"]
        else:
            epsilon = found.get("epsilons", {}).get("as_the_paper_counted", epsilon)
            by_epsilon.setdefault(name, []).append((epsilon, found["perplexity"]))
            name += f", ε = {epsilon:.3g}"
            by_step[name] = found["perplexity_by_step"]
    label = "ε as the paper counted" if report["mode"] == "paper" else "ε"
    path = folder / "perplexity_by_epsilon.png"
    _plot_by_epsilon(by_epsilon, levels, path, label=label)
    _plot_by_step(by_step, levels, folder / "perplexity_by_step.png")


def _plot_by_epsilon(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    levels: Mapping[str, float],
    path: Path,
    *,
    label: str = "ε",
) -> None:
    """Draws perplexity against ε.

    Args:
      curves: For each method, pairs (ε, perplexity).
      levels: Perplexities that do not depend on ε.
      path: PNG file.
      label: What is on the horizontal axis.
    """
    figure, axes = _axes()
    for name, points in curves.items():
        epsilons, perplexities = np.transpose(sorted(points))
        axes.plot(epsilons, perplexities, "o-", label=name)
    for style, (name, level) in zip((":", "--"), levels.items(), strict=False):
        axes.axhline(level, color="black", linestyle=style, label=name)
    axes.set_xscale("log")
    ticks = sorted({epsilon for points in curves.values() for epsilon, _ in points})
    axes.set_xticks(ticks, [f"{epsilon:.3g}" for epsilon in ticks])
    axes.minorticks_off()
    axes.set_xlabel(label)
    _save(figure, axes, path)


def _plot_by_step(
    curves: Mapping[str, Sequence[float]], levels: Mapping[str, float], path: Path
) -> None:
    """Draws perplexity after each step, for each method."""
    figure, axes = _axes()
    for name, perplexities in curves.items():
        steps = np.arange(1, len(perplexities) + 1)
        axes.plot(steps, perplexities, ".-", label=name)
    for name, level in levels.items():
        axes.axhline(level, color="black", linestyle=":", label=name)
    axes.set_xlabel("step")
    _save(figure, axes, path)


def _axes() -> tuple[Any, Any]:
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(6.0, 4.0))


def _save(figure: Any, axes: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    axes.set_ylabel("held-out perplexity (upper bound)")
    axes.legend()
    figure.savefig(str(path), bbox_inches="tight", dpi=150)
    plt.close(figure)
