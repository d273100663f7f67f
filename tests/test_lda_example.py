"""The topic model example measures what it says, and what readers run does run."""

import json
import math
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import digamma, gammaln, softmax

import _corpus
import _lda_paper
import _topics
import lda
import numpyro_vips as nv

ALPHA, ETA = 0.3, 0.1


def document_bound(
    concentration: np.ndarray, document: np.ndarray, iterations: int
) -> float:
    """Hoffman et al.'s bound of one document, token by token."""
    tokens = np.repeat(np.arange(len(document)), document)
    log_beta = digamma(concentration) - digamma(concentration.sum(1, keepdims=True))
    log_beta = log_beta[:, tokens]
    num_topics = len(concentration)
    gamma = np.full(num_topics, ALPHA)
    for _ in range(iterations):
        log_theta = digamma(gamma) - digamma(gamma.sum())
        phi = np.asarray(softmax(log_theta[:, None] + log_beta, axis=0))
        gamma = ALPHA + phi.sum(1)
    log_theta = digamma(gamma) - digamma(gamma.sum())
    phi = np.asarray(softmax(log_theta[:, None] + log_beta, axis=0))
    assert np.allclose(phi.sum(1) + ALPHA, gamma, atol=1e-4), "not converged"
    bound = np.sum(phi * (log_theta[:, None] + log_beta - np.log(phi)))
    bound += gammaln(ALPHA * num_topics) - num_topics * gammaln(ALPHA)
    bound += (ALPHA - 1) * log_theta.sum()
    bound -= gammaln(gamma.sum()) - gammaln(gamma).sum() + (gamma - 1) @ log_theta
    # The same again, with the assignments summed out.
    assert bound == pytest.approx(
        np.log(np.exp(log_theta[:, None] + log_beta).sum(axis=0)).sum()
        + (ALPHA - gamma) @ log_theta
        + gammaln(gamma).sum()
        - gammaln(gamma.sum())
        + gammaln(ALPHA * num_topics)
        - num_topics * gammaln(ALPHA),
        abs=1e-3,
    )
    return float(bound)


@pytest.fixture(scope="module")
def documents() -> Any:
    return _corpus.generated(num_documents=120).counts


@pytest.mark.slow
def test_held_out_perplexity_is_the_bound_of_hoffman_et_al(documents: Any):
    held_out = documents[:5]
    model = lda.topic_model(3, documents.shape[1], alpha=ALPHA, eta=ETA)
    found = lda.fit(
        model,
        lda.Documents(*_corpus.padded(documents, 48)),
        lda.Documents(*_corpus.padded(held_out, 48)),
        budget=nv.PrivacyBudget(math.inf),
        num_steps=3,
        local_steps=300,
        progress_bar=False,
    )
    assert len(found.perplexities) == 3
    concentration = np.asarray(found.result.params["beta/concentration"], np.float64)
    bounds = [document_bound(concentration, row, 300) for row in held_out.toarray()]
    expected = math.exp(-sum(bounds) / held_out.sum())
    assert found.perplexity == pytest.approx(expected, rel=1e-4)


def test_unigram_perplexity_is_that_of_smoothed_frequencies():
    training = sp.csr_matrix(np.array([[2, 1, 0], [1, 0, 0]]))
    held_out = sp.csr_matrix(np.array([[1, 0, 0], [0, 2, 1]]))
    probability = (4 / 7) * (2 / 7) ** 2 * (1 / 7)
    found = _topics.unigram_perplexity(training, held_out)
    assert found == pytest.approx(probability ** (-1 / 4))


def test_overlap_is_with_the_best_matching_topic():
    reference = np.zeros((2, 40))
    reference[0, :10] = reference[1, 10:20] = 0.1
    same = reference[::-1]
    assert _topics.overlap(same, reference) == 1.0
    half = np.zeros((2, 40))
    # Five words of the first reference topic, and two of each.
    half[0, 5:10] = half[0, 20:25] = 0.1
    half[1, 8:12] = half[1, 30:36] = 0.1
    assert _topics.overlap(half, reference) == pytest.approx((0.5 + 0.2) / 2)


def test_top_words_are_printed_with_their_probabilities():
    topics = np.array([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]])
    table = _topics.topic_table(topics, ["apple", "bread", "cider"])
    assert "bread 0.6000  cider 0.3000  apple 0.1000" in table.splitlines()[0]
    assert "apple 0.5000" in table.splitlines()[1]


def test_the_paper_is_priced_as_counted_and_as_corrected():
    # N = 400,000, S = 20,000, sigma = 1.24: 2.38 in section 4.3 of the paper.
    settings = _lda_paper.settings(400_000, 20_000)
    schedule = {
        "sampling_rate": settings["sampling"].rate,
        "num_steps": settings["num_steps"],
        "delta": 1e-4,
    }
    found = _lda_paper.epsilons(1.24, **schedule)
    assert found["as_the_paper_counted"] == pytest.approx(2.3826, abs=1e-4)
    assert found["corrected"] == pytest.approx(2.16, abs=5e-3)
    assert found["corrected"] < found["corrected_moments"]
    strong = _lda_paper.strong_composition_sigma(1.24, **schedule)
    epsilon = nv.accounting.epsilon(
        noise_multiplier=strong,
        sampling="without_replacement",
        accountant="strong",
        **schedule,
    )
    assert epsilon == pytest.approx(2.3826, abs=1e-3)
    assert strong > 2 * 1.24


def write_corpus(folder: Path, num_documents: int) -> list[str]:
    """A docword file of synthetic documents; returns the options that read it."""
    corpus = _corpus.generated(num_documents)
    entries: Any = sp.coo_matrix(corpus.counts)
    lines = [*map(str, entries.shape), str(entries.nnz)]
    rows = zip(entries.row + 1, entries.col + 1, entries.data, strict=True)
    lines += [f"{document} {word} {count}" for document, word, count in rows]
    data, vocabulary = folder / "docword.txt", folder / "vocab.txt"
    data.write_text("\n".join(lines) + "\n")
    vocabulary.write_text("\n".join(corpus.vocabulary) + "\n")
    return ["--data", str(data), "--vocabulary", str(vocabulary), "--no-progress"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*insecure_seed")
def test_example_reports_and_leaves_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    output, json_file = tmp_path / "output", tmp_path / "report.json"
    lda.main(
        [
            *write_corpus(tmp_path, 400),
            *("--topics", "6", "--typical-length", "60", "--epsilon", "8", "2"),
            *("--delta", "1e-5", "--steps", "4", "--local-steps", "10"),
            *("--insecure-seed", "0", "--max-distinct-words", "48"),
            *("--output", str(output), "--json", str(json_file)),
        ]
    )
    report = json.loads(json_file.read_text())
    assert report["num_documents"] == 360
    assert report["num_held_out"] == 40
    assert report["clipping_norm"] == pytest.approx(math.sqrt(60))
    reference, *fits = report["fits"]
    assert reference["epsilon"] == "inf"
    assert reference["perplexity"] < 0.7 * report["unigram"]
    assert reference["overlap"] == 1.0
    assert [found["epsilon"] for found in fits] == pytest.approx([8, 2], rel=1e-3)
    for found in fits:
        assert found["relation"] == "add_or_remove"
        assert 0 < found["delta"] <= 1e-5
        assert len(found["perplexity_by_step"]) == found["num_steps"] == 4
        assert reference["perplexity"] < found["perplexity"]
        assert found["perplexity"] == found["perplexity_by_step"][-1]
    assert fits[0]["perplexity"] < report["unigram"]
    idata: Any = az.from_netcdf(str(output / "posterior.nc"))
    assert idata.posterior["beta"].dims == ("chain", "draw", "topics", "word")
    assert set(idata.posterior["word"].to_numpy()) >= {"ship", "song", "day"}
    assert "observed_data" not in list(idata)
    for name in ("perplexity_by_epsilon.png", "perplexity_by_step.png"):
        assert (output / name).read_bytes().startswith(b"\x89PNG")
    saved = nv.load(output / "result.nc")
    assert saved.privacy.epsilon == pytest.approx(8, rel=1e-3)
    printed = capsys.readouterr().out
    assert "differentially private" in printed
    assert "insecure" in printed.lower()
    assert "topic  5:" in printed


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*insecure_seed")
def test_paper_mode_runs_the_methods_of_figure_2(tmp_path: Path):
    report = lda.main(
        [
            *write_corpus(tmp_path, 210),
            *("--paper", "--topics", "6", "--held-out", "10", "--minibatch", "50"),
            *("--sigma", "1.5", "--document-length", "100", "--draw-seed", "0"),
            *("--insecure-seed", "0", "--local-steps", "10"),
            *("--output", str(tmp_path / "output"), "--max-distinct-words", "48"),
            "--no-reference",
        ]
    )
    fits = {found["method"]: found for found in report["fits"]}
    assert list(fits) == ["moments accountant", "strong composition", "no clipping"]
    assert report["clipping_norm"] == pytest.approx(10.0)
    schedule = {"sampling_rate": 0.25, "num_steps": 4, "delta": 1e-4}
    priced = _lda_paper.epsilons(1.5, **schedule)
    for method in ("moments accountant", "no clipping"):
        assert fits[method]["epsilons"] == pytest.approx(priced)
        # The statement is about the corrected sensitivity.
        assert fits[method]["epsilon"] == pytest.approx(priced["corrected"], rel=1e-3)
        assert fits[method]["relation"] == "replace_one"
    assert fits["strong composition"]["sigma"] > 1.5
    counted = fits["strong composition"]["epsilons"]["as_the_paper_counted"]
    assert counted == priced["as_the_paper_counted"]
    assert all(len(found["perplexity_by_step"]) == 4 for found in fits.values())
    saved = nv.load(tmp_path / "output" / "result.nc")
    assert sum(event.num_steps for event in saved.privacy.events) == 4
    for event in saved.privacy.events:
        # The last step counts clipped rows, too, which makes both a little larger.
        assert event.noise_stddev == pytest.approx(1.5 * 10.0, rel=0.02)
        assert event.noise_multiplier == pytest.approx(1.5 / math.sqrt(2.0))


@pytest.mark.slow
def test_the_paper_s_average_goes_on_from_random_counts(documents: Any):
    """After one step the topics hold a share of rho_0 of the corpus.

    The rest is the start of Hoffman et al., a Gamma(100, 1/100) draw for each entry.
    """
    training = lda.Documents(*_corpus.padded(documents, 48))
    model = lda.topic_model(3, documents.shape[1], alpha=ALPHA, eta=ETA)
    settings = _lda_paper.settings(len(training.ids), len(training.ids))
    result = lda.fit(
        model,
        training,
        training,
        budget=nv.PrivacyBudget(math.inf),
        by_step=False,
        progress_bar=False,
        **settings,
    ).result
    concentration = np.asarray(result.params["beta/concentration"], np.float64)
    weight = concentration.sum() - concentration.size * ETA
    rho = 1024**-0.7
    size = concentration.size
    expected = (1.0 - rho) * size + rho * documents.sum()
    # Five standard deviations of the sum of draws.
    assert weight == pytest.approx(expected, abs=5 * 0.1 * math.sqrt(size))
    assert 5 * 0.1 * math.sqrt(size) < 0.2 * rho * documents.sum()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "no-such-file.txt"], "needs --vocabulary"),
        (["--data", "no-such-file.txt", "--vocabulary", "none.txt"], "none.txt"),
        (["--held-out", "2000"], "--held-out 2000"),
        (["--paper", "--minibatch", "5000"], "--minibatch 5000"),
    ],
)
def test_what_is_missing_is_named(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit):
        lda.main(options)
    assert message in capsys.readouterr().err


def test_the_clipping_norm_needs_a_public_fact(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit):
        lda.main(write_corpus(tmp_path, 20))
    assert "--typical-length" in capsys.readouterr().err
