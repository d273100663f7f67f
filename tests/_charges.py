"""Events and charges that tests of ledgers share."""

from numpyro_vips.accounting import GaussianEvent, Relation


def full(
    noise: float = 10.0, steps: int = 1, relation: Relation = "add_or_remove"
) -> GaussianEvent:
    return GaussianEvent(
        noise_stddev=noise,
        sensitivity=1.0,
        relation=relation,
        sampling="full",
        sampling_rate=1.0,
        num_steps=steps,
        label="sums",
    )


def poisson(noise=1.0, rate=0.01, steps=100):
    return GaussianEvent(
        noise_stddev=noise,
        sensitivity=1.0,
        relation="add_or_remove",
        sampling="poisson",
        sampling_rate=rate,
        num_steps=steps,
    )


def entry(epsilon, delta=1e-8, relation="add_or_remove", events=(), **other):
    return {
        "epsilon": epsilon,
        "delta": delta,
        "unit": "patients",
        "relation": relation,
        "events": events,
        **other,
    }


def charge(budget, *arguments, **other):
    return budget.charge(**entry(*arguments, **other))
