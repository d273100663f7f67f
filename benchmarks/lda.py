"""Topics of 400,000 arXiv abstracts: speed, memory, and perplexity against ε.

    python benchmarks/lda.py throughput --data FOLDER
    python benchmarks/lda.py memory --data FOLDER
    python benchmarks/lda.py nonprivate --data FOLDER
    python benchmarks/lda.py paper --data FOLDER
    python benchmarks/lda.py own --data FOLDER
    python benchmarks/lda.py table --data FOLDER --into docs/lda.md
    python benchmarks/lda.py judge

FOLDER holds `docword.*` and `vocab.*`. Each part leaves `PART.json` in the output
folder; `nonprivate` also leaves the topics that the others compare theirs with, and
`judge` reads what is there and says what it amounts to. `--documents` takes a part of
the training documents, for a quick look. The held-out documents are always the same.
With `--fits FILE` every fit of `paper` and `table` is written down when it is done and
not done again by a further call, so the table can be made in parts.
"""

import argparse
import dataclasses
import functools
import gc
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.decomposition import LatentDirichletAllocation

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from _finished import Finished
from _marks import put_between_marks
from _memory import peak_bytes

import _corpus
import _lda_paper
import _topics
import lda
import numpyro_vips as nv

NUM_TOPICS = 50
LOCAL_STEPS = 20
SIGMAS = (1.0, 1.1, 1.24, 1.5, 2.0)
MINIBATCHES = (5_000, 10_000, 20_000)
# Public facts about arXiv abstracts after stop words are removed: some 80 words, and
# hardly ever more than 128 different ones.
CLIPPING_NORM = 9.0
MAX_DISTINCT_WORDS = 128
DELTA = 1e-4
# Relation, ε and number of full-batch steps of our own mode. 2.16 is what the paper's
# σ = 1.24, S = 20,000 costs under the corrected sensitivity.
OWN_RUNS = (
    ("replace_one", 2.16, 10),
    ("add_or_remove", 1.0, 10),
    ("add_or_remove", 8.0, 20),
)


class Data(NamedTuple):
    """The corpus, split; `sparse` are the training documents as they are."""

    sparse: sp.csr_matrix
    held_out_sparse: sp.csr_matrix
    held_out: lda.Documents
    vocabulary: tuple[str, ...]

    def training(self, length: int | None = None) -> lda.Documents:
        """Training documents as the model takes them, perhaps of a fixed length."""
        counts = self.sparse
        if length:
            counts = _corpus.fixed_length(counts, length, seed=0)
        return lda.Documents(*_corpus.padded(counts, MAX_DISTINCT_WORDS))

    def model(self) -> nv.private:
        prior = 1.0 / NUM_TOPICS
        return lda.topic_model(NUM_TOPICS, len(self.vocabulary), alpha=prior, eta=prior)


def main() -> None:
    args = _parse()
    args.output.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    record = args.part(args)
    if record is not None:
        record |= {"documents": args.documents, "seconds": time.perf_counter() - start}
        path = args.output / f"{args.name}.json"
        path.write_text(json.dumps(record, indent=2) + "\n")
        print(f"{record['seconds']:.0f} s; {path}")


# Speed and memory ---------------------------------------------------------------------


def throughput(args: argparse.Namespace) -> dict[str, Any]:
    """Documents per second at 20 local iterations, ours against scikit-learn's.

    Ours is the time of `run` after planning and compiling, over full batches: E-step,
    clipping and noise if private, global step. Theirs is `partial_fit` on the same
    documents as one minibatch in each pass, with `max_doc_update_iter=20` and
    `mean_change_tol=0`, so that all iterations run, after a first call that starts its
    two processes. The best of several rounds counts for each.
    """
    data = _load(args)
    documents = data.training()
    model, count = data.model(), len(documents.ids)
    best: dict[str, float] = {}

    def ours(budget: nv.PrivacyBudget, **settings: Any) -> float:
        vi = nv.PrivateVI(
            model,
            budget=budget,
            engine=nv.VIPS(local_steps=LOCAL_STEPS),
            num_steps=args.steps,
            progress_bar=False,
            **settings,
        )
        result = vi.run(_key(), *documents)
        return args.steps * count / result.seconds["running"]

    def theirs(batch_size: int) -> float:
        sklearn_lda = _sklearn(
            len(data.vocabulary),
            batch_size=batch_size,
            total_samples=count,
            max_doc_update_iter=LOCAL_STEPS,
            mean_change_tol=0.0,
        )
        sklearn_lda.partial_fit(data.sparse[:200])
        start = time.perf_counter()
        sklearn_lda.partial_fit(data.sparse)
        return count / (time.perf_counter() - start)

    for _ in range(args.repeats):
        rounds: dict[str, Callable[[], float]] = {
            "non-private": lambda: ours(nv.PrivacyBudget(math.inf)),
            "private": lambda: ours(
                nv.PrivacyBudget(1.0, DELTA), clipping_norm=CLIPPING_NORM
            ),
            "scikit-learn, one batch": lambda: theirs(count),
            "scikit-learn, batches of 4096": lambda: theirs(4096),
        }
        for name, measure in rounds.items():
            best[name] = max(best.get(name, 0.0), measure())
            print(f"{name}: {best[name]:,.0f} documents/s", flush=True)
    return {"documents_per_second": best, "training_documents": count}


def memory(args: argparse.Namespace) -> dict[str, Any]:
    """Peak resident memory of whole private runs, each in a process of its own."""
    found = []
    for documents in (args.documents or 0, (args.documents or 400_000) // 4):
        command = [sys.executable, __file__, "run-once", "--data", str(args.data)]
        command += ["--output", str(args.output), "--documents", str(documents)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        measured = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{measured['training_documents']:,} documents: "
            f"{measured['peak_gigabytes']:.2f} GB at the peak, of which the documents "
            f"{measured['documents_gigabytes']:.2f} GB",
            flush=True,
        )
        found.append(measured)
    return {"runs": found}


def run_once(args: argparse.Namespace) -> None:
    """The run that `memory` measures: read, fit privately, save."""
    data = _load(args)
    documents = data.training()
    result = lda.fit(
        data.model(),
        documents,
        data.held_out,
        budget=nv.PrivacyBudget(1.0, DELTA),
        by_step=False,
        num_steps=2,
        clipping_norm=CLIPPING_NORM,
        progress_bar=False,
    ).result
    result.save(args.output / "memory.nc")
    size = sum(array.nbytes for array in documents)
    measured = {
        "training_documents": len(documents.ids),
        "peak_gigabytes": peak_bytes() / 1e9,
        "documents_gigabytes": size / 1e9,
    }
    print(json.dumps(measured))


# Perplexity ---------------------------------------------------------------------------


def nonprivate(args: argparse.Namespace) -> dict[str, Any]:
    """Held-out perplexity without noise, ours against scikit-learn's.

    The same documents, priors, minibatch size and number of epochs; scikit-learn keeps
    its own step sizes. Both sets of topics are measured by `result.elbo`.
    """
    data = _load(args)
    documents, model = data.training(), data.model()
    count = len(documents.ids)
    settings = lda.reference_settings(count)
    sampling = settings.get("sampling", nv.FullBatch())
    epochs = round(settings["num_steps"] * sampling.rate)
    found = _without_budget(model, documents, data.held_out, **settings)
    found.result.save(args.output / "reference.nc")
    print(f"ours: {found.perplexity:.1f}, {found.result.seconds}", flush=True)
    start = time.perf_counter()
    sklearn_lda = _sklearn(
        len(data.vocabulary),
        batch_size=lda.REFERENCE_BATCH,
        total_samples=count,
        max_doc_update_iter=LOCAL_STEPS,
    )
    for _ in range(epochs):
        sklearn_lda.partial_fit(data.sparse)
    seconds = time.perf_counter() - start
    theirs = _topics.held_out_perplexity(
        _with_topics(found.result, sklearn_lda.components_), *data.held_out
    )
    print(f"scikit-learn: {theirs:.1f} in {seconds:.0f} s")
    return {
        "perplexity": found.perplexity,
        "perplexity_sklearn": theirs,
        "fit_seconds": dict(found.result.seconds),
        "fit_seconds_sklearn": seconds,
        "epochs": epochs,
        "unigram": _unigram(data),
    }


def _without_budget(
    model: nv.private,
    documents: lda.Documents,
    held_out: lda.Documents,
    **settings: Any,
) -> lda.Fit:
    """A fit with the noise that the settings say, none if they say nothing."""
    return lda.fit(
        model,
        documents,
        held_out,
        budget=nv.PrivacyBudget(math.inf),
        by_step=False,
        progress_bar=False,
        **settings,
    )


def _with_topics(
    result: nv.PrivateVIResult, concentration: np.ndarray
) -> nv.PrivateVIResult:
    """The same result with other topics, to be measured in the same way."""
    posterior = type(result.posterior).from_specification(
        result.posterior.specification,
        {"beta/concentration": np.asarray(concentration, np.float32)},  # type: ignore[arg-type]
    )
    return dataclasses.replace(result, posterior=posterior)


def paper(args: argparse.Namespace) -> dict[str, Any]:
    """The paper's experiment at σ = 1.24 and S = 20,000: all methods of figure 2."""
    data = _load(args)
    runs = _paper_runs(args, data, [args.sigma], [args.minibatch])
    return {"runs": runs, "unigram": _unigram(data)}


def table(args: argparse.Namespace) -> dict[str, Any]:
    """The paper's grid of σ and S, as a table in Markdown."""
    data = _load(args)
    runs = _paper_runs(args, data, args.sigmas, args.minibatches)
    unigram = _unigram(data)
    text = _markdown(runs, unigram)
    print(text)
    if args.into is not None:
        put_between_marks(args.into, text)
    return {"runs": runs, "unigram": unigram}


def _paper_runs(
    args: argparse.Namespace, data: Data, sigmas: Any, minibatches: Any
) -> list[dict[str, Any]]:
    """One record for each method and setting, printed as they come."""
    length = args.document_length or None
    documents = data.training(length)
    # Without clipping the number of words bounds the norm: all may be the same word.
    longest = float(length or args.longest_document)
    norm = args.clipping_share * length if length else CLIPPING_NORM
    model, reference = data.model(), _reference(args)
    finished = Finished(args.fits)

    def measure(settings: dict[str, Any]) -> dict[str, Any]:
        found = _without_budget(model, documents, data.held_out, **settings)
        return {
            "perplexity": found.perplexity,
            "overlap": _overlap(found.result, reference),
            "seconds": dict(found.result.seconds),
        }

    runs: list[dict[str, Any]] = []
    for minibatch in minibatches:
        settings = _lda_paper.settings(len(documents.ids), minibatch)
        schedule = {
            "sampling_rate": settings["sampling"].rate,
            "num_steps": settings["num_steps"],
            "delta": DELTA,
        }
        fits: list[tuple[str, float, float | None, float]] = [
            ("non-private", math.nan, None, math.inf)
        ]
        for sigma in sigmas:
            strong = _lda_paper.strong_composition_sigma(sigma, **schedule)
            fits += [
                ("clipping", sigma, sigma, norm),
                ("no clipping", sigma, sigma, longest),
                ("strong composition", sigma, strong, norm),
            ]
        for method, sigma, noise, bound in fits:
            chosen = dict(settings)
            if noise is not None:
                chosen |= _lda_paper.noise_settings(
                    noise, bound, DELTA, replace_one=True
                )
            key = f"{len(documents.ids)} documents of {length} words, S = {minibatch}, "
            key += f"{method}, sigma = {sigma:g}, norm = {bound:g}"
            record = {
                "method": method,
                "sigma": None if noise is None else sigma,
                "minibatch": minibatch,
                "clipping_norm": None if noise is None else bound,
                **finished.get(key, functools.partial(measure, chosen)),
            }
            if noise is not None:
                record["sigma_used"] = noise
                record["epsilons"] = _lda_paper.epsilons(noise, **schedule)
            runs.append(record)
            print(
                f"S = {minibatch}, sigma = {sigma:g}, {method}: "
                f"{record['perplexity']:.1f} in {record['seconds']['running']:.0f} s",
                flush=True,
            )
            # The compiled programs of a fit are large.
            gc.collect()
    return runs


def own(args: argparse.Namespace) -> dict[str, Any]:
    """Full batches, signed averages and a clipping norm from the document length."""
    data = _load(args)
    documents, model = data.training(), data.model()
    reference = _reference(args)
    runs = []
    chosen = [(relation, float(e), int(steps)) for relation, e, steps in args.run]
    for relation, epsilon, steps in chosen or OWN_RUNS:
        found = lda.fit(
            model,
            documents,
            data.held_out,
            budget=nv.PrivacyBudget(epsilon, DELTA),
            # The average of all steps, step t counting about t^power times.
            engine=nv.VIPS(step_size=lambda t: (args.power + 1) / (t + args.power + 1)),
            sampling=nv.FullBatch(relation=relation),  # type: ignore[arg-type]
            num_steps=steps,
            clipping_norm=args.clipping_norm,
            by_step=args.by_step,
            progress_bar=False,
        )
        record = {
            "relation": relation,
            "epsilon": found.result.privacy.epsilon,
            "steps": steps,
            "clipping_norm": args.clipping_norm,
            "power": args.power,
            "perplexity": found.perplexity,
            "perplexity_by_step": found.perplexities,
            "overlap": _overlap(found.result, reference),
            "seconds": dict(found.result.seconds),
        }
        runs.append(record)
        print(
            f"{relation}, epsilon = {epsilon:g}, {steps} steps: "
            f"{found.perplexity:.1f}, overlap {record['overlap']}, "
            f"{found.result.seconds['running']:.0f} s",
            flush=True,
        )
    return {"runs": runs, "unigram": _unigram(data)}


def judge(args: argparse.Namespace) -> None:
    """Prints what the measurements that are there amount to, against the targets."""
    found = {
        name: json.loads(path.read_text())
        for name in ("throughput", "memory", "nonprivate", "paper", "own")
        if (path := args.output / f"{name}.json").exists()
    }
    if "throughput" in found:
        speed = found["throughput"]["documents_per_second"]
        theirs = max(v for k, v in speed.items() if k.startswith("scikit-learn"))
        _verdict("non-private speed over scikit-learn", speed["non-private"] / theirs)
        _verdict("private speed over scikit-learn", speed["private"] / theirs, least=5)
        cost = speed["non-private"] / speed["private"] - 1
        _verdict("time that privacy adds", cost, most=0.25)
    if "memory" in found:
        for run in found["memory"]["runs"]:
            name = f"GB at the peak, {run['training_documents']} documents"
            _verdict(name, run["peak_gigabytes"], most=3)
    if "nonprivate" in found:
        record = found["nonprivate"]
        ratio = record["perplexity"] / record["perplexity_sklearn"]
        _verdict("non-private perplexity over scikit-learn's", ratio, most=1.01)
    by_method = {
        run["method"]: run["perplexity"]
        for run in found.get("paper", {}).get("runs", ())
    }
    if by_method:
        clipped = by_method["clipping"]
        ratio = clipped / found["paper"]["unigram"]
        _verdict("paper mode over unigram", ratio, most=1)
        ratio = clipped / by_method["no clipping"]
        _verdict("clipping over no clipping", ratio, most=1)
    for run in found.get("own", {}).get("runs", ()):
        name = f"own mode, {run['relation']}, epsilon {run['epsilon']:.3g}: perplexity"
        if run["relation"] == "replace_one" and by_method:
            ratio = run["perplexity"] / by_method["clipping"]
            _verdict(f"{name} over paper mode", ratio, most=0.83)
        if run["relation"] == "add_or_remove" and run["epsilon"] < 2:
            ratio = run["perplexity"] / found["own"]["unigram"]
            _verdict(f"{name} over unigram", ratio, most=0.75)
        if run["epsilon"] > 7 and "nonprivate" in found:
            ratio = run["perplexity"] / found["nonprivate"]["perplexity"]
            _verdict(f"{name} over non-private", ratio, most=1.05)
    for name in ("paper", "own"):
        for run in found.get(name, {}).get("runs", ()):
            label = run.get("method") or f"{run['relation']}, {run['epsilon']:.3g}"
            if run["overlap"] is not None:
                _verdict(f"{name} mode, {label}: overlap of top 10", run["overlap"])


def _verdict(
    name: str, value: float, *, least: float | None = None, most: float | None = None
) -> None:
    line = f"{name:<68}{value:8.3f}"
    if least is not None:
        line += f"  at least {least:g}: {'yes' if value >= least else 'NO'}"
    if most is not None:
        line += f"  at most {most:g}: {'yes' if value <= most else 'NO'}"
    print(line)


# Helpers ------------------------------------------------------------------------------


def _load(args: argparse.Namespace) -> Data:
    docword, vocabulary = (
        next(iter(sorted(args.data.glob(pattern))), None)
        for pattern in ("docword.*", "vocab.*")
    )
    if docword is None or vocabulary is None:
        raise SystemExit(f"{args.data} has no docword.* with vocab.*")
    corpus = _corpus.load(docword, vocabulary)
    training, held_out = _corpus.split(corpus.counts, args.held_out)
    if args.documents:
        training = training[: args.documents]
    return Data(
        sparse=training,
        held_out_sparse=held_out,
        held_out=lda.Documents(*_corpus.padded(held_out, MAX_DISTINCT_WORDS)),
        vocabulary=corpus.vocabulary,
    )


def _unigram(data: Data) -> float:
    value = _topics.unigram_perplexity(data.sparse, data.held_out_sparse)
    print(f"unigram: {value:.1f}")
    return value


def _reference(args: argparse.Namespace) -> nv.PrivateVIResult | None:
    """The topics that `nonprivate` has left."""
    path = args.output / "reference.nc"
    return nv.load(path) if path.exists() else None


def _overlap(
    result: nv.PrivateVIResult, reference: nv.PrivateVIResult | None
) -> float | None:
    if reference is None:
        return None
    return _topics.overlap(_topics.topic_words(result), _topics.topic_words(reference))


def _sklearn(num_words: int, **settings: Any) -> LatentDirichletAllocation:
    return LatentDirichletAllocation(
        n_components=NUM_TOPICS,
        doc_topic_prior=1.0 / NUM_TOPICS,
        topic_word_prior=1.0 / NUM_TOPICS,
        learning_method="online",
        n_jobs=2,
        random_state=0,
        **settings,
    )


def _key() -> Any:
    import jax

    return jax.random.key(0)


def _markdown(runs: list[dict[str, Any]], unigram: float) -> str:
    """The grid as a table: a row for each S and σ, a column for each method."""
    cells = {(run["minibatch"], run["sigma"], run["method"]): run for run in runs}
    lines = [
        "| S | σ | ε as the paper counted | ε, corrected | moments accountant |"
        " no clipping | strong composition | non-private |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for run in runs:
        if run["method"] != "clipping":
            continue
        size, sigma, epsilons = run["minibatch"], run["sigma"], run["epsilons"]
        row = (
            run,
            cells[size, sigma, "no clipping"],
            cells[size, sigma, "strong composition"],
            cells[size, None, "non-private"],
        )
        columns = [
            f"{size:,}",
            f"{sigma:g}",
            f"{epsilons['as_the_paper_counted']:.3g}",
            f"{epsilons['corrected']:.3g}",
            *map(_cell, row),
        ]
        lines.append(f"| {' | '.join(columns)} |")
    lines.append(f"\nUnigram baseline: {unigram:,.0f}.")
    return "\n".join(lines)


def _cell(run: dict[str, Any]) -> str:
    """Perplexity, and the overlap of topics in brackets if it is known."""
    overlap = run["overlap"]
    known = "" if overlap is None else f" ({overlap:.2f})"
    return f"{run['perplexity']:,.0f}{known}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="name", required=True)
    for name, part in (
        ("throughput", throughput),
        ("memory", memory),
        ("run-once", run_once),
        ("nonprivate", nonprivate),
        ("paper", paper),
        ("own", own),
        ("table", table),
        ("judge", judge),
    ):
        one = parts.add_parser(name, help=(part.__doc__ or "").splitlines()[0])
        one.set_defaults(part=part)
        one.add_argument(
            "--output", type=Path, default=Path("demo-output/lda-benchmark")
        )
        if name == "judge":
            continue
        one.add_argument("--data", type=Path, required=True, metavar="FOLDER")
        one.add_argument("--held-out", type=int, default=5000)
        one.add_argument(
            "--documents",
            type=int,
            metavar="N",
            default=20_000 if name == "throughput" else None,
            help="take the first N training documents only",
        )
        if name == "throughput":
            one.add_argument("--steps", type=int, default=3)
            one.add_argument("--repeats", type=int, default=3)
        if name == "own":
            one.add_argument(
                "--run",
                nargs=3,
                action="append",
                default=[],
                metavar=("RELATION", "EPSILON", "STEPS"),
                help="in place of the three runs that are judged",
            )
            one.add_argument("--power", type=float, default=1.0)
            one.add_argument("--clipping-norm", type=float, default=CLIPPING_NORM)
            one.add_argument("--by-step", action="store_true")
        if name in ("paper", "table"):
            one.add_argument(
                "--fits",
                type=Path,
                metavar="FILE",
                help="write down every fit when it is done, and do none again",
            )
            one.add_argument(
                "--document-length",
                type=int,
                default=500,
                help="0: as they are, clipped to norm 9",
            )
            one.add_argument("--clipping-share", type=float, default=0.1, metavar="a")
            one.add_argument(
                "--longest-document",
                type=int,
                default=256,
                help="documents as they are: what bounds them without clipping",
            )
        if name == "paper":
            one.add_argument("--sigma", type=float, default=1.24)
            one.add_argument("--minibatch", type=int, default=20_000)
        if name == "table":
            one.add_argument("--into", type=Path, metavar="FILE")
            one.add_argument("--sigmas", type=float, nargs="+", default=SIGMAS)
            one.add_argument("--minibatches", type=int, nargs="+", default=MINIBATCHES)
    return parser.parse_args()


if __name__ == "__main__":
    main()
