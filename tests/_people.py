"""A table of people, and the schema that encodes it."""

import numpy as np

import numpyro_vips as nv

SCHEMA = nv.Schema(
    age=nv.Bounded(0, 120, missing="indicator"),
    income=nv.LogBounded(1_000, 1_000_000),
    job=nv.Categorical(["clerk", "cook"], reference="clerk", handle_unknown="ignore"),
    sex=nv.Binary("f", "m"),
)
COLUMNS = ("age", "age=missing", "log(income)", "job=cook", "sex=m")


def people(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "age": rng.uniform(20, 80, count),
        "income": rng.lognormal(10, 1, count),
        "job": rng.choice(["clerk", "cook"], count),
        "sex": rng.choice(["f", "m"], count),
    }
