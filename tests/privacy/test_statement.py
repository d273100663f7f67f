"""The statement tells the truth about its events, and says it plainly."""

import json
import math
import time
import warnings

import pytest

from numpyro_vips import accounting
from numpyro_vips.accounting import GaussianEvent, Sampling
from numpyro_vips.privacy.secure_random import SecureRandom
from numpyro_vips.privacy.statement import NOT_COVERED, NoisyShare, PrivacyStatement


def event(
    noise: float = 2.0,
    sampling: Sampling = "poisson",
    rate: float = 0.02,
    steps: int = 100,
    label: str = "counts",
) -> GaussianEvent:
    return GaussianEvent(
        noise_stddev=noise,
        sensitivity=1.0,
        relation="replace_one"
        if sampling == "without_replacement"
        else "add_or_remove",
        sampling=sampling,
        sampling_rate=rate,
        num_steps=steps,
        label=label,
    )


def statement(events=None, **changes):
    events = (event(),) if events is None else tuple(events)
    fields = {
        "unit": "patients",
        "relation": events[0].relation,
        "sampling": events[0].sampling,
        "epsilon": 1.0,
        "delta": 1e-6,
        "accountant": "pld",
        "events": events,
        "noise_source": SecureRandom().source,
        "public": ("feature names", "model: the program itself"),
        "clipping_norm": 1.5,
        "engine": "vips",
        "platform": "cpu",
        "num_rows": 1234,
        "num_rows_declared": False,
        **changes,
    }
    return PrivacyStatement(**fields)


NOT_PRIVATE = {
    "events": [
        GaussianEvent(
            noise_stddev=0.0,
            sensitivity=math.inf,
            relation="add_or_remove",
            sampling="full",
            sampling_rate=1.0,
        )
    ],
    "epsilon": math.inf,
    "delta": 0.0,
    "clipping_norm": math.inf,
}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"events": [event(sampling="without_replacement", rate=0.05)]},
        {"events": [event(sampling="full", rate=1.0)], "clipping_norm": (1.0, 2.5)},
        {"accountant": "moments"},
        {"platform": "gpu"},
        NOT_PRIVATE,
    ],
)
def test_statements_survive_json(fields):
    before = statement(**fields)
    text = json.dumps(before.to_dict(), allow_nan=False)
    assert PrivacyStatement.from_dict(json.loads(text)) == before


def test_the_curve_is_the_accountants():
    own = statement()
    for delta, epsilon in own.epsilon_curve([1e-4, 1e-6]):
        assert epsilon == accounting.epsilon_of_events(own.events, delta=delta)
    (_, price), *_ = own.epsilon_curve([1e-6])
    assert own.delta_at(price) == pytest.approx(1e-6, rel=0.02)
    epsilons = [epsilon for _, epsilon in own.epsilon_curve()]
    assert epsilons == sorted(epsilons)


def test_gaussian_dp_mu_is_exact_for_full_batches():
    own = statement([event(noise=2.0, sampling="full", rate=1.0, steps=8)])
    assert own.is_gaussian
    assert own.gaussian_dp_mu == pytest.approx(math.sqrt(8) / 2)
    assert "mu = 1.414" in str(own)
    assert not statement().is_gaussian
    assert "about mu" in str(statement())


def test_the_text_says_what_a_reader_needs():
    text = str(statement(clipping_norm=(1.5, 2.0)))
    for phrase in (
        "(1, 1e-06)-differentially private",
        "adding or removing one of the patients",
        "Poisson",
        "pld",
        "1.5, 2",
        "ChaCha20",
        "operating system",
        "counts: 100 times",
        "Treated as public",
        "1234 (the actual number, which is treated as public)",
        "feature names",
        "model: the program itself",
        "Not covered",
        "dp-accounting",
    ):
        assert phrase in text
    assert all(fact in text for fact in NOT_COVERED)
    assert "NOT PRIVATE" not in text
    assert "declared by the caller" in str(statement(num_rows_declared=True))


def test_what_is_not_covered_names_the_known_gaps():
    gaps = " ".join(NOT_COVERED)
    for gap in ("floating-point", "timing", "several rows", "public", "released"):
        assert gap in gaps


@pytest.mark.parametrize("platform", ["gpu", "cpu, tpu", "unknown"])
def test_rows_places_are_claimed_for_cpus_alone(platform):
    """That they do not matter has been tested nowhere else."""
    assert "place" not in str(statement())
    own = statement(platform=platform)
    assert own.to_dict()["platform"] == platform
    for gaps in (str(own), " ".join(own.to_dict()["not_covered"])):
        assert "contributes the same" in gaps and f"ran on: {platform}" in gaps


def test_replacement_is_said():
    text = str(statement([event(sampling="without_replacement", rate=0.05)]))
    assert "replacing one of the patients" in text
    assert "without replacement" in text


def test_an_infinite_epsilon_is_said_in_capitals():
    own = statement(**NOT_PRIVATE)
    assert not own.is_private
    assert "NOT PRIVATE" in str(own)
    assert "differentially private" not in str(own)
    assert own.to_dict()["private"] is False
    assert own.to_dict()["epsilon"] == "inf"


def test_a_seed_is_stated():
    with warnings.catch_warnings(action="ignore"):
        seeded = SecureRandom(insecure_seed=3)
    own = statement(noise_source=seeded.source)
    assert "INSECURE" in str(own)
    assert "INSECURE" in own.to_dict()["noise_source"]


def test_printing_takes_no_time():
    schedules = [
        [event(noise=1.1, rate=0.01, steps=1000)],
        [event(noise=4.0, sampling="full", rate=1.0, steps=10)],
        [event(noise=3.0, rate=0.05, steps=30), event(noise=9.0, rate=1.0, steps=3)],
    ]
    str(statement())  # The first price imports dp-accounting.
    for events in schedules:
        start = time.process_time()
        str(statement(events))
        assert time.process_time() - start < 2.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"relation": "both"}, "relation"),
        ({"sampling": "shuffle"}, "sampling"),
        ({"accountant": "rdp"}, "accountant"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"num_rows": 0}, "num_rows"),
    ],
)
def test_statements_check_themselves(changes, message):
    with pytest.raises(ValueError, match=message):
        statement(**changes)


@pytest.mark.parametrize(
    ("share", "stddev", "text"),
    [
        (1.0319, 0.0068, "100.00 % (sd 0.68 %)"),
        (-0.005, 0.006, "0.00 % (sd 0.60 %)"),
        (0.307, 0.02, "30.7 % (sd 2.0 %)"),
        (0.5, 0.2, "50 % (sd 20 %)"),
        (1.0, 0.0, "100 %"),
        (0.307, 0.0, "31 %"),
        (0.00012, 0.0, "0.012 %"),
    ],
)
def test_texts_say_a_share_that_there_can_be(share, stddev, text):
    assert str(NoisyShare(share=share, stddev=stddev)) == text
