"""What decides how numbers are rounded beside a program: settings, versions, processor.

What a row contributes must not depend on where it is worked on. If it were, a row
that is left out would move those behind it to other chunks, and so perhaps to another
process, in which they contribute something else.
"""

import functools
import math
import os
import platform
from importlib import metadata
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

# Settings of JAX that a traced program depends on, but for `usual_settings`.
JAX_SETTINGS = (
    *("jax_enable_x64", "jax_default_device", "jax_default_matmul_precision"),
    *("jax_default_prng_impl", "jax_threefry_partitionable"),
)
# A device has another name in each process.
_OWN_SETTINGS = ("jax_default_device",)
_LIBRARIES = ("jax", "jaxlib", "numpy", "numpyro", "numpyro_vips", "scipy")
_CPUINFO = Path("/proc/cpuinfo")
# What it says of a processor that programs are compiled for; all else may change from
# one to the next that works alike, or from minute to minute.
_KINDS = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part", "Features")
_INSTRUCTIONS = ("sse", "ssse", "avx", "fma", "f16c", "amx")


def settings_of_jax(names: tuple[str, ...] = JAX_SETTINGS) -> tuple[str, ...]:
    """The values of settings that a traced program depends on, as texts."""
    return tuple(str(getattr(jax.config, name, None)) for name in names)


def how_numbers_are_rounded() -> str:
    """A text that differs where programs may round in another way.

    Processors that work alike may have different texts all the same.
    """
    names = tuple(name for name in JAX_SETTINGS if name not in _OWN_SETTINGS)
    devices = {(d.platform, d.device_kind) for d in jnp.zeros(()).devices()}
    return repr(
        (
            settings_of_jax(names),
            sorted(devices),
            [_version(name) for name in _LIBRARIES],
            os.environ.get("XLA_FLAGS", ""),
            _processor(),
        )
    )


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        return kind_of_processor(_CPUINFO.read_text())
    except OSError:  # Not Linux.
        return f"{platform.machine()} {platform.processor()}"


def kind_of_processor(cpuinfo: str) -> str:
    """Maker, model and vector instructions of the first processor in Linux's list."""
    first, _, _ = cpuinfo.strip().partition("\n\n")
    facts = {
        name.strip(): value.split()
        for name, _, value in (line.partition(":") for line in first.splitlines())
    }
    found = [" ".join(facts.get(name, [])) for name in _KINDS]
    flags = facts.get("flags", [])
    found += sorted(flag for flag in flags if flag.startswith(_INSTRUCTIONS))
    return f"{platform.machine()} {' '.join(found)}"


def check_numbers_that_are_not_finite_are_seen() -> None:
    """Refuses a JAX that compiles as if there were no infinity and nothing undefined.

    A row that holds such a number would not be seen to, and would stand in the sum.

    Raises:
      RuntimeError: The environment's XLA_FLAGS have it compile so.
    """
    if not _sees_what_is_not_finite(str(jax.device_put(np.zeros(())).devices())):
        raise RuntimeError(
            "JAX does not see which numbers are not finite: XLA_FLAGS in the "
            "environment have it compile as if there were none, such as "
            "--xla_cpu_fast_math_honor_nans=false. A record that holds one could not "
            "be kept out of the sums. Start Python without such flags. Nothing was "
            "charged."
        )


@functools.cache
def _sees_what_is_not_finite(_devices: str) -> bool:
    """Whether programs on a device do; its name is what this is remembered by."""
    numbers = np.array([math.nan, math.inf, -math.inf, 1.0], np.float32)
    expected = [False, False, False, True]

    @jax.jit
    def program(x: jax.Array, large: jax.Array) -> tuple[jax.Array, ...]:
        # A sum of clipped rows asks in the first two ways.
        kept = jnp.where(jnp.isfinite(x), x, 0.0)
        return jnp.isfinite(x), kept, jnp.isfinite(large * large - large * large)

    is_finite, kept, made = map(np.asarray, program(numbers, 1e30 * numbers))
    return (
        is_finite.tolist() == expected
        and bool(np.isfinite(kept).all())
        and not made.any()
    )
