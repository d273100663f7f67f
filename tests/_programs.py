"""Small programs of latents and rows, run in the algebra and on arrays."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _evaluate import evaluate
from scipy import special

from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.interpreter.interpreter import interpret
from numpyro_vips.conjugacy.interpreter.values import (
    Constant,
    Opaque,
    Transformed,
    Value,
)

RNG = np.random.default_rng(1)
LATENTS: dict[str, np.ndarray] = {
    "w": RNG.normal(size=3).astype(np.float32),
    "W": RNG.normal(size=(4, 2)).astype(np.float32),
    "a": np.float32(0.8) * np.ones((), np.float32),
    "tau": RNG.uniform(0.5, 2.0, 3).astype(np.float32),
    "T": RNG.uniform(0.5, 2.0, (4, 2)).astype(np.float32),
    "p": RNG.uniform(0.1, 0.9, 3).astype(np.float32),
    "beta": RNG.dirichlet(np.ones(5), size=3).astype(np.float32),
    "z": RNG.integers(0, 3, 6),
    "s": RNG.integers(0, 3, ()),
    "b": RNG.integers(0, 2, 6),
}
STATES = {"z": np.arange(3), "s": np.arange(3), "b": np.arange(2)}
ROWS: dict[str, np.ndarray] = {
    "X": RNG.normal(size=(5, 3)).astype(np.float32),
    "R": RNG.uniform(0.2, 0.8, (5, 3)).astype(np.float32),
    "i": RNG.integers(0, 3, 5),
    "y": RNG.normal(size=5).astype(np.float32),
}


class Named:
    """Attribute access to the arrays that a program is given."""

    def __init__(self, arrays: dict[str, Any]):
        self.__dict__.update(arrays)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


Program = Callable[[Named], Any]


def run(program: Program, *, public: bool) -> tuple[Value, np.ndarray, list[Any]]:
    """What the interpreter makes of a program, what it really returns, and checks.

    The rows are either public NumPy arrays or arrays that must not shape anything.
    """
    names = [*LATENTS, *ROWS]
    arrays = {**LATENTS, **ROWS}

    def positional(*values: Any) -> Any:
        return program(Named(dict(zip(names, values, strict=True))))

    closed = jax.make_jaxpr(positional)(*(jnp.asarray(arrays[n]) for n in names))
    inputs: list[Value] = [
        forms.latent(name, value.shape, STATES.get(name), signed=name in "wWa")
        for name, value in LATENTS.items()
    ]
    for value in ROWS.values():
        array = value if public else jnp.asarray(value)
        inputs.append(Constant(array, is_private=not public))
    (result,), checks = interpret(closed, inputs)
    expected = program(Named({k: jnp.asarray(v) for k, v in arrays.items()}))
    return result, np.asarray(expected), checks


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "sigmoid": special.expit,
    "logsumexp": lambda x: special.logsumexp(x, axis=-1),
}


def value_of(result: Value) -> np.ndarray:
    if isinstance(result, Constant):
        return np.asarray(result.array)
    if isinstance(result, Transformed):
        return _FUNCTIONS[result.function](value_of(result.form))
    assert isinstance(result, Form)
    return evaluate(result, LATENTS, STATES)


def check_value(program: Program, *, public: bool) -> None:
    """The value that the algebra has is the one that arrays give."""
    result, expected, checks = run(program, public=public)
    assert not isinstance(result, Opaque), result.reason
    found = value_of(result)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    assert all(np.all(check) for check in checks)


# A program without a form, which latent the reason must name, and what is done to it.
Refused = tuple[Program, str, str]


def check_reason(refused: Refused) -> None:
    program, latent, operation = refused
    result, _, _ = run(program, public=False)
    assert isinstance(result, Opaque), "accepted"
    assert latent in result.latents
    assert repr(latent) in result.reason
    assert operation in result.reason
