"""Errors that name what is special to private inference.

Ordinary bad arguments raise `ValueError` or `TypeError`. No message quotes a
private value: shapes and names only.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


class NotConjugateError(Exception):
    """VIPS was asked for, and the model is not conjugate-exponential.

    The message names the site and the use that is in the way. Nothing was charged.

        >>> import jax, jax.numpy as jnp, numpy as np, numpyro
        >>> import numpyro.distributions as dist
        >>> import numpyro_vips as nv
        >>> @nv.private(unit="people")
        ... def model(y):
        ...     w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        ...     with numpyro.plate("people", len(y)):
        ...         numpyro.sample("y", dist.Normal(jnp.tanh(w), 1.0), obs=y)
        >>> vi = nv.PrivateVI(model, budget=nv.PrivacyBudget(1.0, 1e-6), engine="vips")
        >>> try:
        ...     vi.explain(np.zeros(100))
        ... except nv.NotConjugateError as error:
        ...     print(str(error).split(".")[0])
        The model is not conjugate-exponential: y: tanh of 'w' in 'loc' of Normal

    Attributes:
      reasons: Why it is not, by the site that is in the way.
    """

    def __init__(self, reasons: Mapping[str, str], message: str | None = None) -> None:
        """The error for these reasons, which are the message if there is no other."""
        self.reasons = dict(reasons)
        super().__init__(message or "; ".join(f"{k}: {v}" for k, v in reasons.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reasons, str(self))


class UnsafeModelError(ValueError):
    """No engine may run the model, because the guarantee would not hold.

    The message says what is unsafe and how to change the model. Nothing was charged. It
    is a `ValueError`, since a model is an argument like another.

        >>> import numpy as np, numpyro, numpyro.distributions as dist
        >>> import numpyro_vips as nv
        >>> @nv.private(unit="people")
        ... def model(x, y):
        ...     w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        ...     with numpyro.plate("people", len(y)):
        ...         numpyro.sample("y", dist.Normal(w * (x - x.mean()), 1.0), obs=y)
        >>> vi = nv.PrivateVI(model, budget=nv.PrivacyBudget(1.0, 1e-6))
        >>> try:
        ...     vi.explain(np.zeros(100), np.zeros(100))
        ... except nv.UnsafeModelError as error:
        ...     print(str(error).split(":")[0])
        The rows act on each other
    """


class BudgetExceededError(Exception):
    """A fit would overrun the privacy budget; nothing was spent or read.

    >>> import numpyro_vips as nv
    >>> budget = nv.PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> fit = {"unit": "people", "relation": "add_or_remove", "events": ()}
    >>> try:
    ...     budget.charge(epsilon=2.0, delta=1e-6, **fit)
    ... except nv.BudgetExceededError as error:
    ...     print(str(error).split(".")[0])
    The fit asks for epsilon=2, delta=1e-06
    >>> budget.spent()
    Spending(epsilon=0.0, delta=0.0)
    """


class UnusablePosteriorError(ArithmeticError):
    """A fit ended in what is no posterior; what was charged stays charged.

        >>> import jax, numpy as np, numpyro, numpyro.distributions as dist, optax
        >>> import numpyro_vips as nv
        >>> @nv.private(unit="people")
        ... def model(y):
        ...     w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        ...     with numpyro.plate("people", len(y)):
        ...         numpyro.sample("y", dist.Normal(w, 1.0), obs=y)
        >>> vi = nv.PrivateVI(
        ...     model,
        ...     budget=nv.PrivacyBudget(np.inf),
        ...     engine=nv.DPVI(optimizer=optax.sgd(1e38)),
        ...     num_steps=3,
        ...     progress_bar=False,
        ... )
        >>> try:
        ...     vi.run(jax.random.key(0), np.ones(100, np.float32))
        ... except nv.UnusablePosteriorError as error:
        ...     print(error.result.engine, list(error.released))
        dpvi ['guide/loc', 'guide/log_scale']

    Attributes:
      result: The result as it is: its privacy statement, diagnostics and parameters. It
        may be saved; its draws mean nothing. None where not even that could be made of
        what was released, so that the fit ended in an error, which is this one's cause.
      released: What the fit released beside it, by name: sums with their noise, or the
        values of the last step.
    """

    def __init__(self, message: str, *, result: Any, released: Mapping[str, Any]):
        super().__init__(message)
        self.result = result
        self.released = dict(released)


def quoted(names: Iterable[str], if_none: str = "none") -> str:
    """Names in quotes, with commas between them; `if_none` where there are none."""
    return ", ".join(map(repr, names)) or if_none


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question after the known name that is nearest, empty if none is near."""
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"Did you mean {nearest[0]!r}?" if nearest else ""
