"""What is compared of processes that work on the same rows."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from numpyro_vips.jax_tools.rounding import (
    check_numbers_that_are_not_finite_are_seen,
    how_numbers_are_rounded,
    kind_of_processor,
    settings_of_jax,
)

CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 85
model name\t: Xeon @ 2.20GHz
cpu MHz\t\t: 2200.1
flags\t\t: fpu sse sse2 ssse3 fma avx avx2 avx512f md_clear

processor\t: 1
vendor_id\t: GenuineIntel
"""


def test_it_is_the_same_each_time():
    assert how_numbers_are_rounded() == how_numbers_are_rounded()


def test_precision_and_flags_of_the_compiler_show(monkeypatch):
    before = how_numbers_are_rounded(), settings_of_jax()
    is_double = jax.dtypes.canonicalize_dtype(np.float64) == np.float64
    with jax.enable_x64(not is_double):
        assert how_numbers_are_rounded() != before[0]
        assert settings_of_jax() != before[1]
    assert how_numbers_are_rounded() == before[0]
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert how_numbers_are_rounded() != before[0]


@pytest.mark.parametrize(
    ("old", "new", "is_alike"),
    [
        ("2200.1", "2893.2", True),
        (" md_clear", "", True),
        ("@ 2.20GHz", "@ 2.30GHz", True),
        ("sse sse2", "sse2 sse", True),
        (" avx512f", "", False),
        ("GenuineIntel\ncpu", "AuthenticAMD\ncpu", False),
        (": 85", ": 106", False),
    ],
)
def test_a_processor_is_what_programs_are_compiled_for(old, new, is_alike):
    assert old in CPUINFO
    found = kind_of_processor(CPUINFO.replace(old, new))
    assert (found == kind_of_processor(CPUINFO)) == is_alike


def test_an_arm_processor_has_a_kind_too():
    text = "processor: 0\nFeatures: fp asimd sve\nCPU part: 0xd40\n"
    other = text.replace(" sve", "")
    assert kind_of_processor(text) != kind_of_processor(other)
    assert kind_of_processor(text) != kind_of_processor(text.replace("d40", "d41"))


def test_numbers_that_are_not_finite_are_seen_here():
    check_numbers_that_are_not_finite_are_seen()


FAST = "--xla_cpu_enable_fast_math=true --xla_cpu_fast_math_honor_nans=false"
FIT = """
import numpy as np, numpyro, numpyro.distributions as dist, numpyro_vips as nv

@nv.private(unit="rows")
def model(y):
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

nv.PrivateVI(model, budget=nv.PrivacyBudget(1.0, 1e-6)).explain(np.ones(9, np.float32))
"""


@pytest.mark.thorough
def test_a_jax_that_takes_every_number_for_finite_is_refused():
    """The sum of a row that holds NaN was NaN."""
    found = subprocess.run(
        [sys.executable, "-c", FIT],
        # And none of those by which tests compile more quickly, to slower programs.
        env={**os.environ, "XLA_FLAGS": FAST},
        capture_output=True,
        text=True,
        check=False,
    )
    if "Unknown flag" in found.stderr:
        pytest.skip("This XLA has no such flags.")
    assert "RuntimeError: JAX does not see which numbers are not finite" in found.stderr
