"""Private topics: latent Dirichlet allocation of a corpus, one document a unit.

    python examples/lda.py
    python examples/lda.py --data docword.arxiv.txt.xz --vocabulary vocab.arxiv.txt \\
        --topics 50 --clipping-norm 9 --epsilon 1 2 4 --delta 1e-4
    python examples/lda.py --data docword.arxiv.txt.xz --vocabulary vocab.arxiv.txt \\
        --topics 50 --paper --minibatch 20000 --sigma 1 1.24 2

Without options it reads a synthetic corpus. A corpus is a UCI docword file, a matrix of
counts (Matrix Market or scipy.sparse, one row for each document) or raw text (--text,
one document a line); its vocabulary must be public. Prints the topics, the privacy
statement and the perplexity of held-out documents; leaves the posterior for ArviZ and
two plots.

With --paper it repeats section 4.3 of Park, Foulds, Chaudhuri and Welling (2020):
documents of a fixed length, minibatches without replacement, one epoch, the paper's
step sizes and the methods of figure 2.

The guarantee covers the posterior and all that follows from it. Perplexities are
computed from documents as they are, and the unigram and non-private references from
the training documents without noise: they are for the holder of the data, so publish
them only where the documents are public. Several fits add up, as the ledger shows.
"""

import argparse
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import _corpus
import _lda_paper
import _topics
import numpyro_vips as nv
from _fit_options import add_run_options, given, sampling_of, write_json

# Draws for ArviZ are fewer where topics are large.
MOST_NUMBERS_IN_ARVIZ = 20_000_000
# Without noise, minibatches of this size learn faster than full batches.
REFERENCE_BATCH, REFERENCE_EPOCHS, REFERENCE_STEPS = 4096, 2, 20


class Documents(NamedTuple):
    """Bags of words of a fixed width, padded with counts of 0."""

    ids: np.ndarray
    counts: np.ndarray


class Fit(NamedTuple):
    """A fitted model and its held-out perplexity after each step."""

    result: nv.PrivateVIResult
    perplexities: list[float]

    @property
    def perplexity(self) -> float:
        return self.perplexities[-1]


def topic_model(
    num_topics: int, num_words: int, *, alpha: float, eta: float
) -> nv.private:
    """Latent Dirichlet allocation of documents given as word ids with counts.

    Args:
      num_topics: K.
      num_words: Size V of the vocabulary.
      alpha: Prior concentration of a document's topic proportions.
      eta: Prior concentration of a topic's word probabilities.
    """

    @nv.private(unit="documents")
    def model(ids, counts):
        with numpyro.plate("topics", num_topics):
            beta = numpyro.sample("beta", dist.Dirichlet(jnp.full(num_words, eta)))
        with numpyro.plate("documents", ids.shape[0], dim=-2):
            theta = numpyro.sample("theta", dist.Dirichlet(jnp.full(num_topics, alpha)))
            with (
                numpyro.plate("words", ids.shape[1], dim=-1),
                numpyro.handlers.mask(mask=counts > 0),
                numpyro.handlers.scale(scale=jnp.maximum(counts, 1)),
            ):
                z = numpyro.sample(
                    "z", dist.Categorical(theta), infer={"enumerate": "parallel"}
                )
                numpyro.sample("w", dist.Categorical(beta[z]), obs=ids)

    return model


def fit(
    model: nv.private,
    training: Documents,
    held_out: Documents,
    *,
    budget: nv.PrivacyBudget,
    by_step: bool = True,
    engine: nv.VIPS | None = None,
    local_steps: int | None = None,
    **settings: Any,
) -> Fit:
    """Fits the topics and measures them on held-out documents.

    Args:
      model: A `topic_model`.
      training, held_out: Documents.
      budget: The ledger that pays.
      by_step: Whether to measure after each step, whose posterior is released anyway,
        or after the last one only.
      engine: Settings of VIPS.
      local_steps: Iterations over a document's topics, in place of those in `engine`.
      **settings: Of `PrivateVI`.
    """
    engine = nv.VIPS() if engine is None else engine
    if local_steps is not None:
        engine = dataclasses.replace(engine, local_steps=local_steps)
    perplexities: list[float] = []

    def measure(step: int, result: nv.PrivateVIResult) -> None:
        perplexities.append(_topics.held_out_perplexity(result, *held_out))

    vi = nv.PrivateVI(
        model,
        budget=budget,
        engine=engine,
        callback=measure if by_step else None,
        **settings,
    )
    result = vi.run(jax.random.key(0), *training)
    if not by_step:
        measure(result.settings["num_steps"], result)
    return Fit(result, perplexities)


def reference_settings(num_documents: int) -> dict[str, Any]:
    """Settings of a fit without noise: minibatches for a large corpus."""
    if num_documents <= REFERENCE_BATCH:
        return {"num_steps": REFERENCE_STEPS}
    steps = REFERENCE_EPOCHS * num_documents // REFERENCE_BATCH
    return {
        # Hoffman et al. (2010), and what scikit-learn does.
        "engine": nv.VIPS(step_size=lambda t: (10.0 + t) ** -0.7),
        "sampling": nv.WithoutReplacement(REFERENCE_BATCH / num_documents),
        "num_steps": max(REFERENCE_STEPS, steps),
    }


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the example and returns what `--json` writes."""
    parser = _parser()
    args = parser.parse_args(arguments)
    try:
        corpus = _load(args)
        num_held_out = _num_held_out(args, corpus)
        _complete(args, corpus.num_documents - num_held_out)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    training, held_out = _corpus.split(corpus.counts, num_held_out)
    unigram = _topics.unigram_perplexity(training, held_out)
    if args.document_length is not None:
        training = _corpus.fixed_length(training, args.document_length, args.draw_seed)
    training = Documents(*_corpus.padded(training, args.max_distinct_words))
    # Held-out documents are measured as they are.
    held_out = Documents(*_corpus.padded(held_out, args.max_distinct_words))
    print(
        f"{corpus.name}: {len(training.ids)} documents to train on, "
        f"{len(held_out.ids)} held out, {len(corpus.vocabulary)} words"
    )

    model = topic_model(
        args.topics,
        len(corpus.vocabulary),
        alpha=args.alpha or 1.0 / args.topics,
        eta=args.eta or 1.0 / args.topics,
    )
    common = {
        "progress_bar": not args.no_progress,
        "insecure_seed": args.insecure_seed,
        **given(local_steps=args.local_steps),
    }
    report: dict[str, Any] = {
        "data": corpus.name,
        "mode": "paper" if args.paper else "own",
        "num_documents": len(training.ids),
        "num_held_out": len(held_out.ids),
        "num_words": len(corpus.vocabulary),
        "num_topics": args.topics,
        "document_length": args.document_length,
        "clipping_norm": args.clipping_norm,
        "insecure_seed": args.insecure_seed,
        "unigram": unigram,
        "fits": [],
    }
    run = _run_paper if args.paper else _run_own
    shown, reference = run(args, report, model, training, held_out, common)

    topics = _topics.topic_words(shown)
    args.output.mkdir(parents=True, exist_ok=True)
    draws = MOST_NUMBERS_IN_ARVIZ // topics.size
    shown.to_arviz(
        jax.random.key(1),
        num_samples=max(1, min(1000, draws)),
        dims={"beta": ["topics", "word"]},
        coords={"word": list(corpus.vocabulary)},
    ).to_netcdf(str(args.output / "posterior.nc"))
    shown.save(args.output / "result.nc")
    _topics.draw(report, args.output)
    write_json(report, args)

    print(_topics.topic_table(topics, corpus.vocabulary))
    print(shown.privacy)
    print(_topics.summary(report))
    if reference is not None:
        share = _topics.overlap(topics, _topics.topic_words(reference))
        print(f"top-10 words shared with the best non-private topic: {share:.0%}")
    print(f"posterior.nc, result.nc and two plots are in {args.output}")
    return report


def _run_own(
    args: argparse.Namespace,
    report: dict[str, Any],
    model: nv.private,
    training: Documents,
    held_out: Documents,
    common: dict[str, Any],
) -> tuple[nv.PrivateVIResult, nv.PrivateVIResult | None]:
    """One fit for each ε (or σ), all paid from one ledger, and one without noise."""
    reference = None
    if not args.no_reference:
        found = fit(
            model,
            training,
            held_out,
            budget=nv.PrivacyBudget(math.inf),
            **(common | reference_settings(len(training.ids))),
        )
        reference = found.result
        _record(report, "non-private", found, reference)
    chosen: dict[str, Any] = common | given(
        num_steps=args.steps,
        sampling=sampling_of(args.sampling, args.sampling_rate, args.relation),
    )
    replace_one = chosen["sampling"].relation == "replace_one"
    # Decimal shares add up exactly, so the budget is spent to the end.
    epsilon, delta = math.inf, 0.0
    if args.sigma is None:
        epsilon = math.fsum(args.epsilon)
        delta = math.fsum([args.delta] * len(args.epsilon))
    budget = nv.PrivacyBudget(epsilon, delta, accountant=args.accountant)
    shown = None
    for level in args.sigma or args.epsilon:
        if args.sigma is None:
            price = {
                "epsilon": level,
                "delta": args.delta,
                "clipping_norm": args.clipping_norm,
            }
        else:
            price = _lda_paper.noise_settings(
                level, args.clipping_norm, args.delta, replace_one=replace_one
            )
        found = fit(model, training, held_out, budget=budget, **chosen, **price)
        _record(report, "private", found, reference, sigma=args.sigma and level)
        shown = shown or found.result
    assert shown is not None
    return shown, reference


def _run_paper(
    args: argparse.Namespace,
    report: dict[str, Any],
    model: nv.private,
    training: Documents,
    held_out: Documents,
    common: dict[str, Any],
) -> tuple[nv.PrivateVIResult, nv.PrivateVIResult | None]:
    """The four methods of figure 2; shows the moments accountant with clipping."""
    settings = _lda_paper.settings(len(training.ids), args.minibatch)
    schedule = {
        "sampling_rate": settings["sampling"].rate,
        "num_steps": settings["num_steps"],
        "delta": args.delta,
    }
    # Each method stands for a different publication: no ledger adds them up.
    budget = nv.PrivacyBudget(math.inf)
    reference = None
    if not args.no_reference:
        found = fit(model, training, held_out, budget=budget, **settings, **common)
        reference = found.result
        _record(report, "non-private", found, reference)
    shown = None
    for sigma in args.sigma:
        strong = _lda_paper.strong_composition_sigma(sigma, **schedule)
        for method, noise, norm in (
            ("moments accountant", sigma, args.clipping_norm),
            ("strong composition", strong, args.clipping_norm),
            ("no clipping", sigma, float(args.document_length)),
        ):
            price = _lda_paper.noise_settings(noise, norm, args.delta, replace_one=True)
            found = fit(
                model,
                training,
                held_out,
                budget=budget,
                **settings,
                **common,
                **price,
            )
            epsilons = _lda_paper.epsilons(noise, **schedule)
            if method == "strong composition":
                counted = _lda_paper.epsilons(sigma, **schedule)["as_the_paper_counted"]
                epsilons["as_the_paper_counted"] = counted
            _record(report, method, found, reference, sigma=noise, epsilons=epsilons)
            shown = shown or found.result
    assert shown is not None
    return shown, reference


# Report -------------------------------------------------------------------------------


def _record(
    report: dict[str, Any],
    method: str,
    found: Fit,
    reference: nv.PrivateVIResult | None,
    **facts: Any,
) -> None:
    """Adds a fit to what `--json` writes."""
    privacy = found.result.privacy
    topics = _topics.topic_words(found.result)
    report["fits"].append(
        {
            "method": method,
            # JSON has no infinity.
            "epsilon": privacy.epsilon if privacy.is_private else "inf",
            "delta": privacy.delta,
            "relation": privacy.relation,
            "num_steps": found.result.settings["num_steps"],
            "perplexity": found.perplexity,
            "perplexity_by_step": found.perplexities,
            "overlap": reference
            and _topics.overlap(topics, _topics.topic_words(reference)),
            "seconds": dict(found.result.seconds),
            **facts,
        }
    )


# Options ------------------------------------------------------------------------------


def _load(args: argparse.Namespace) -> _corpus.Corpus:
    if args.data is None:
        return _corpus.generated()
    if args.vocabulary is None:
        raise ValueError("--data needs --vocabulary, a public list of words.")
    return _corpus.load(
        args.data, args.vocabulary, text=args.text, columns=args.text_columns
    )


def _num_held_out(args: argparse.Namespace, corpus: _corpus.Corpus) -> int:
    held_out = args.held_out
    if held_out is None:
        held_out = min(5000, corpus.num_documents // 10)
    if not 0 < held_out < corpus.num_documents:
        raise ValueError(
            f"Expected --held-out {held_out} to leave documents to train on and to "
            f"test on, of {corpus.num_documents}."
        )
    return held_out


def _complete(args: argparse.Namespace, num_documents: int) -> None:
    """Fills in what was not given, from public facts alone."""
    is_synthetic = args.data is None
    if args.paper:
        args.document_length = args.document_length or _lda_paper.DOCUMENT_LENGTH
        args.minibatch = args.minibatch or max(1, num_documents // 20)
        args.sigma = args.sigma or [1.24]
        args.delta = args.delta or 1e-4
        if args.minibatch > num_documents:
            raise ValueError(
                f"Expected --minibatch {args.minibatch} to be at most the number of "
                f"documents, {num_documents}."
            )
    args.delta = args.delta or 1e-5
    args.topics = args.topics or (8 if is_synthetic else 50)
    args.max_distinct_words = args.max_distinct_words or (48 if is_synthetic else 128)
    if args.clipping_norm is None:
        if args.document_length is not None:
            args.clipping_norm = _lda_paper.CLIPPING_SHARE * args.document_length
        elif args.typical_length or is_synthetic:
            # A document of L different words, each surely of one topic, has norm √L.
            args.clipping_norm = math.sqrt(args.typical_length or 60.0)
        else:
            raise ValueError(
                "Pass --typical-length, the usual number of words in a document as "
                "publicly known, or --clipping-norm, but compute neither from the "
                "documents."
            )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, help="docword (.txt, .gz, .xz), .mtx, .npz or text")
    add("--vocabulary", type=Path, help="public list of words, one a line")
    add("--text", action="store_true", help="--data is raw text, one document a line")
    add(
        "--text-columns",
        nargs="+",
        default=(),
        metavar="NAME",
        help="with --text: columns of a tab-separated table with a header",
    )
    add("--held-out", type=int, metavar="N", help="documents kept for testing")
    add("--topics", type=int, metavar="K")
    add("--alpha", type=float, help="prior of topic proportions (default: 1/K)")
    add("--eta", type=float, help="prior of topics (default: 1/K)")
    add(
        "--document-length",
        type=int,
        metavar="N",
        help="draw N words from each document with replacement (paper mode: 500); "
        "otherwise documents are used as they are",
    )
    add("--draw-seed", type=int, help="seed of these draws, which need no secrecy")
    add(
        "--max-distinct-words",
        type=int,
        metavar="L",
        help="public limit; longer documents keep their most frequent words",
    )
    add("--typical-length", type=float, metavar="N", help="sets the clipping norm √N")
    add("--clipping-norm", type=float, metavar="C")
    add("--epsilon", type=float, nargs="+", default=[1.0, 0.25, 4.0])
    add("--delta", type=float)
    add(
        "--sigma",
        type=float,
        nargs="+",
        help="in place of --epsilon: noise standard deviation over the clipping norm",
    )
    add("--steps", type=int)
    add("--sampling-rate", type=float)
    add(
        "--sampling",
        choices=("poisson", "full", "without_replacement"),
        default="full",
    )
    add("--relation", choices=("add_or_remove", "replace_one"))
    add("--accountant", choices=("pld", "moments", "strong"), default="pld")
    add("--local-steps", type=int, help="iterations over a document's topics")
    add("--paper", action="store_true", help="repeat the paper's experiment")
    add("--minibatch", type=int, metavar="S", help="paper mode: documents in a step")
    add("--no-reference", action="store_true", help="leave out the fit without noise")
    add_run_options(parser)
    return parser


if __name__ == "__main__":
    main()
