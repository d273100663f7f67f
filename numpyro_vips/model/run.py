"""Runs a model on given rows, with given latents, under NumPyro's handlers.

The unit plate covers exactly the rows that the model is given, so the engine draws the
minibatch, and loops written with NumPyro's `scan` are unrolled into their sites.
"""

import contextlib
import math
import types
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.distributions import biject_to
from numpyro.primitives import Messenger

from numpyro_vips.errors import UnsafeModelError, quoted
from numpyro_vips.handlers import in_own_structure, private
from numpyro_vips.jax_tools.random_keys import threefry_key
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.distributions import unwrapped
from numpyro_vips.model.handler_stack import alone_with_handlers, unvalidated
from numpyro_vips.model.references.wide_arrays import with_fresh_arrays


class UnitPlate(Messenger):
    """Checks the unit plate and takes its subsampling over."""

    def __init__(self, unit: str, num_rows: int, all_rows: int, index: Any = None):
        self.unit = unit
        self.num_rows = num_rows
        self.all_rows = all_rows
        self.index = jnp.arange(num_rows) if index is None else index
        self.seen = False
        self.plate_names: list[str] = []
        self._fits: dict[str, bool] = {}  # Whether plates are as long as the rows.
        self._wrong_size: Any = None
        self._scale = 1.0  # What the plate multiplies log densities by.
        super().__init__()

    def process_message(self, msg: Any) -> None:
        """Gives the unit plate its rows, and takes its factor off what is in it.

        A unit plate of a wrong size stays as it is; see `problem`.
        """
        inside = msg["type"] == "sample" and any(
            frame.name == self.unit for frame in msg["cond_indep_stack"]
        )
        if inside and self._scale != 1.0:
            scale = msg["scale"] / self._scale
            is_one = isinstance(scale, float) and math.isclose(scale, 1.0)
            msg["scale"] = None if is_one else scale
        if msg["type"] != "plate":
            return
        size, subsample_size = msg["args"]
        # A model may know the number of all rows, as a public number of its own.
        fits = self.num_rows in (size, subsample_size) or size == self.all_rows
        self.plate_names.append(msg["name"])
        self._fits.setdefault(msg["name"], fits)
        if msg["name"] != self.unit:
            return
        if not fits:
            self._wrong_size = size
            return
        self.seen = True
        # The engine draws the rows and scales their sum, so the plate covers exactly
        # the rows that it is given and scales nothing.
        self._scale = size / self.num_rows
        msg["args"] = (self.num_rows, self.num_rows)
        msg["value"] = self.index

    def problem(self) -> ValueError | None:
        """The unit plate is as long as neither the rows nor all of them, if it is so.

        Asked for when the model has run, since it names the plate that fits.
        """
        if self._wrong_size is None:
            return None
        message = (
            f"Expected the unit plate {self.unit!r} to have one entry per row, but its "
            f"size is {self._wrong_size} when the model is given {self.num_rows} of "
            f"the {self.all_rows} rows, to try it. "
        )
        others = [name for name, fits in self._fits.items() if fits]
        if others:
            message += (
                f"Of its plates {quoted(others)} has one entry per row: if its rows "
                f"are the protected individuals, write private(unit={others[0]!r}). "
                "Otherwise write"
            )
        else:
            message += "Write"
        return ValueError(
            f"{message} numpyro.plate({self.unit!r}, X.shape[0]), with X one of the "
            "private arguments, or with their number, a Python int."
        )


class _Substitute(Messenger):
    """Gives latents and parameters their values; notices what only a trace shows."""

    def __init__(
        self, values: Mapping[str, Any] | None, params: Mapping[str, Any], unit: str
    ):
        self.values = values
        self.params = params
        self.unit = unit
        # Positions in the loops that are being unrolled, outermost first.
        self._time: list[int] = []
        super().__init__()

    def _unrolled(self, msg: Any) -> Any:
        """Runs the body of NumPyro's `scan` step by step; step t's sites end in [t]."""
        if not getattr(msg["fn"], "__name__", "").startswith("scan"):
            raise UnsafeModelError(
                "The model uses numpyro.contrib.control_flow.cond, which is not "
                "supported. Use jnp.where."
            )
        body, carry, xs, length, reverse = msg["args"]
        count = length if xs is None else len(jax.tree.leaves(xs)[0])
        collected = []
        for t in reversed(range(count)) if reverse else range(count):
            self._time.append(t)
            x = jax.tree.map(lambda leaf, t=t: leaf[t], xs)
            carry, y = body(carry, x)
            self._time.pop()
            collected.append(y)
        if reverse:
            collected.reverse()
        ys = jax.tree.map(lambda *leaves: jnp.stack(leaves), *collected)
        # What NumPyro's scan expects; its sites have been seen one by one already.
        return (count, None, carry), (types.SimpleNamespace(trace={}), ys)

    def _set_param(self, msg: Any) -> None:
        name = msg["name"]
        in_plate = any(frame.name == self.unit for frame in msg["cond_indep_stack"])
        # Without event_dim NumPyro gives a parameter no axis for the plate.
        if in_plate and msg["kwargs"].get("event_dim") is not None:
            raise UnsafeModelError(
                f"The parameter {name!r} stands under the plate {self.unit!r}, so that "
                "every row would have its own and releasing it would release the row. "
                "Write what belongs to a row as a function of the row, with parameters "
                "that all rows share."
            )
        if name in self.params:
            # A copy of the containers, since NumPyro's modules write into them.
            msg["value"] = jax.tree.map(lambda leaf: leaf, self.params[name])
            msg["value"] = in_own_structure(msg)

    def process_message(self, msg: Any) -> None:
        """Gives a site its value, a point if it has no spread, and unrolls loops.

        Raises:
          UnsafeModelError: A state goes from call to call, a latent has a value that
            keeps it a latent, or a parameter belongs to a row.
        """
        if msg["type"] == "param":
            self._set_param(msg)
            return
        if msg["type"] == "mutable":
            raise UnsafeModelError(
                f"{msg['name']!r} is a state that a network carries from one call to "
                "the next, such as the averages of batch normalisation. It would mix "
                "the rows. Use layers without one, such as layer normalisation."
            )
        if msg["type"] == "control_flow":
            msg["value"] = self._unrolled(msg)
            return
        if self._time and msg["type"] in ("sample", "deterministic"):
            msg["name"] += "".join(f"[{t}]" for t in self._time)
        if msg["type"] != "sample" or msg["is_observed"]:
            return
        if msg["value"] is not None:
            raise UnsafeModelError(
                f"The latent {msg['name']!r} is given its value by "
                "numpyro.handlers.substitute, under which it stays a latent to be "
                "fitted. To hold it at a public value use numpyro.handlers.do(model, "
                f"data={{{msg['name']!r}: value}}), or write the value into the model."
            )
        plain, _ = unwrapped(msg["fn"])
        if isinstance(plain, numpyro.distributions.Delta):
            # No latent: all its mass lies on what it is given.
            msg["type"] = "deterministic"
            msg["value"] = _delta_value(msg["name"], plain, msg["fn"].shape())
        elif self.values is not None and msg["name"] in self.values:
            msg["value"] = self.values[msg["name"]]
        elif isinstance(plain, numpyro.distributions.ImproperUniform):
            msg["value"] = _somewhere(msg["fn"])


def _delta_value(name: str, delta: Any, shape: tuple[int, ...]) -> Any:
    density = delta.log_density
    if isinstance(density, jax.core.Tracer) or np.any(np.asarray(density) != 0):
        raise UnsafeModelError(
            f"{name!r} is a latent Delta with a log_density of its own. Write the "
            "density with numpyro.factor under the unit plate, and the value with "
            "numpyro.deterministic."
        )
    return jnp.broadcast_to(delta.v, shape)


def _somewhere(fn: Any) -> jax.Array:
    """A value in the support of a distribution that cannot be drawn from."""
    transform = biject_to(fn.support)
    return transform(jnp.zeros(transform.inverse_shape(fn.shape())))


def run_model(
    model: private,
    arguments: ModelArguments,
    rows: Mapping[str, Any],
    *,
    latents: Mapping[str, Any] | None,
    params: Mapping[str, Any] | None = None,
    index: Any = None,
    rng_key: Any = None,
    chosen: contextlib.AbstractContextManager[Any] | None = None,
) -> tuple[dict[str, dict], UnitPlate]:
    """Runs the model once under NumPyro's handlers and returns its messages.

    Latents that are not given are drawn, and parameters that are not given have their
    initial values, both with `rng_key` or else with a fixed key. The index of the unit
    plate is 0, 1, ... unless it is given. `chosen` is a handler that gives values to
    other latents.

    Raises:
      ValueError: The unit plate has another size than the rows.
    """
    args, kwargs = arguments.call(rows)
    count = next(iter(rows.values())).shape[0]
    unit_plate = UnitPlate(model.unit, count, arguments.public_num_rows, index)
    # Filters of warnings are the process's own, too.
    with alone_with_handlers(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="subsample_size does not match")
        # `trace` is outermost so that it sees the final messages.
        with (
            numpyro.handlers.trace() as trace,
            unit_plate,
            # What has its value when a message comes here is given no key, for which
            # keys would be split.
            numpyro.handlers.seed(
                rng_seed=threefry_key(0) if rng_key is None else rng_key
            ),
            chosen or contextlib.nullcontext(),
            _Substitute(latents, params or {}, model.unit),
            unvalidated(),
        ):
            assert model.fn is not None
            try:
                with_fresh_arrays(model.fn)(*args, **kwargs)
            except Exception:
                # Arrays that do not fit each other follow from a wrong plate.
                if problem := unit_plate.problem():
                    raise problem from None
                raise
    if problem := unit_plate.problem():
        raise problem
    return dict(trace), unit_plate
