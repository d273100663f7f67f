"""Nothing private is left anywhere, and nothing that can be watched depends on it.

Rows with recognisable values are planted; then everything that is reachable from what
a fit leaves behind is searched for them, and for the sums from before the noise.
"""

import functools
import gc
import json
import logging
import math
import re
import struct
import traceback
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.sparse
from _models import logistic_of_patients as logistic
from _models import probit_of_patients as probit
from _printed import read_printed

import numpyro_vips as nv
from numpyro_vips.dpvi.engine import DpviEngine
from numpyro_vips.fitting.prepared_fits import forget_prepared_fits
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.privacy.gaussian_mechanism import GaussianMechanism
from numpyro_vips.privacy.releases import ValidRows
from numpyro_vips.vips.engine import VipsEngine
from numpyro_vips.vips.steps.state import VipsState

pytestmark = pytest.mark.optimized

KEY = jax.random.key(0)
NUM_ROWS = 211  # Declared as 200: the actual number is private too.
DECLARED = 200

# --- models and rows ------------------------------------------------------------------


def wards(ward, visits):
    """Counts, with an index into the globals."""
    with numpyro.plate("ward", 3):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("patients", ward.shape[0]):
        numpyro.sample("visits", dist.Poisson(jnp.asarray(rate)[ward]), obs=visits)


def clusters(X):
    """Latents of single rows."""
    with numpyro.plate("cluster", 2):
        centre = numpyro.sample("centre", dist.Normal(np.zeros(3), 1.0).to_event(1))
    with numpyro.plate("patients", X.shape[0]):
        z = numpyro.sample("z", dist.Categorical(jnp.array([0.4, 0.6])))
        mean = jnp.asarray(centre)[z]
        numpyro.sample("X", dist.Normal(mean, 1.0).to_event(1), obs=X)


def guide():
    loc = numpyro.param("loc", jnp.zeros(3))
    numpyro.sample("w", dist.Normal(loc, 0.1).to_event(1))


def encoder(X):
    """A guide that is a function of the rows, also for the latent of each."""
    loc = numpyro.param("loc", jnp.zeros(3))
    slope = numpyro.param("slope", 0.1 * jnp.ones(3))
    numpyro.sample("centre", dist.Normal(loc, 0.1).to_event(1))
    with numpyro.plate("patients", X.shape[0]):
        numpyro.sample("t", dist.Normal(jnp.tanh(X @ slope), 0.1))


def factors(X):
    centre = numpyro.sample("centre", dist.Normal(np.zeros(3), 1.0).to_event(1))
    with numpyro.plate("patients", X.shape[0]):
        t = jnp.asarray(numpyro.sample("t", dist.Normal(0.0, 1.0)))
        mean = jnp.asarray(centre) * jnp.sin(t)[..., None]
        numpyro.sample("X", dist.Normal(mean, 1.0).to_event(1), obs=X)


# A distinctive float; its square and half would betray a statistic of its row.
FLOAT = 1234.5678
COUNT = 31_337


def labelled() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(NUM_ROWS, 3)).astype(np.float32)
    return X, (rng.random(NUM_ROWS) < 0.5).astype(np.float32)


def planted_floats() -> tuple[Any, ...]:
    X, y = labelled()
    X[3, 1] = FLOAT
    X[4] = FLOAT
    return X, y


def planted_sparse() -> tuple[Any, ...]:
    X, y = planted_floats()
    X[X < 0] = 0
    return scipy.sparse.csr_array(X), y


def planted_counts() -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    visits = rng.poisson(2.0, NUM_ROWS)
    visits[[3, 4]] = COUNT
    return rng.integers(0, 3, NUM_ROWS), visits


# A model, its engine or its guide, and rows.
Case = tuple[Callable[..., None], Any, Callable[[], tuple[Any, ...]]]
PLANTED: dict[str, Case] = {
    "vips": (logistic, "vips", planted_floats),
    "vips, sparse": (logistic, "vips", planted_sparse),
    "vips, integers": (wards, "vips", planted_counts),
    "vips, locals": (clusters, "vips", lambda: planted_floats()[:1]),
    "dpvi": (probit, "dpvi", planted_floats),
    "dpvi, sparse": (probit, "dpvi", planted_sparse),
    "dpvi, integers": (wards, "dpvi", planted_counts),
    "dpvi, guide": (probit, guide, planted_floats),
    "dpvi, encoder": (factors, encoder, lambda: planted_floats()[:1]),
}


def private_vi(fn: Callable[..., None], engine: Any, **options: Any) -> nv.PrivateVI:
    if callable(engine):
        engine = nv.DPVI(guide=engine)
    settings: dict[str, Any] = {
        "budget": nv.PrivacyBudget(1.0, 1e-5),
        "num_rows": DECLARED,
        "sampling": nv.Poisson(0.5),
        "num_steps": 3,
        "clipping_norm": 1.0,
        **options,
    }
    return nv.PrivateVI(nv.private(fn, unit="patients"), engine=engine, **settings)


# --- the search -----------------------------------------------------------------------

_SKIPPED = (type, types.ModuleType, types.BuiltinFunctionType, types.CodeType)


def reachable(*roots: Any) -> Iterator[Any]:
    """Everything that the objects refer to, without libraries' classes and globals."""
    seen: dict[int, Any] = {}
    pending = list(roots)
    while pending:
        item = pending.pop()
        if id(item) in seen or isinstance(item, _SKIPPED):
            continue
        seen[id(item)] = item
        yield item
        if isinstance(item, types.FunctionType):
            # Not its globals: those are the module's, and this test's.
            pending += [cell.cell_contents for cell in item.__closure__ or ()]
            pending += [item.__defaults__, item.__kwdefaults__, item.__dict__]
        elif isinstance(item, np.ndarray):
            pending.append(item.base)  # A view keeps all of the array alive.
            if item.dtype == object:
                pending += item.ravel().tolist()
        elif not isinstance(item, jax.Array):
            pending += gc.get_referents(item)


def _as_text(value: float) -> str:
    """The number as it would be printed, to seven digits: fewer occur in any time.

    Zeros in front do not count, so 0.0123 is no match for "in 0.0123 sec".
    """
    text = f"{abs(value):.9g}"
    zeros = len(text) - len(text.lstrip("0."))
    return text.partition("e")[0][: zeros + 8]


class Secrets:
    """What must not be found.

    Attributes:
      values: Recognisable numbers: planted ones, and sums from before the noise.
      lengths: Numbers of rows.
    """

    def __init__(self, *values: float, lengths: tuple[int, ...] = (NUM_ROWS,)):
        self.values = np.array(values, np.float64)
        self.lengths = lengths

    def are_in(self, value: Any) -> bool:
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
                return False
            if set(self.lengths) & set(value.shape):
                return True
            return value.dtype.kind in "fiu" and self._holds(np.asarray(value))
        if isinstance(value, float | int) and not isinstance(value, bool):
            is_length = isinstance(value, int) and value in self.lengths
            return is_length or self._holds(np.array(float(value)))
        if isinstance(value, str):
            return self._are_told(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return self.are_in_bytes(bytes(value))
        return False

    def _holds(self, array: np.ndarray) -> bool:
        numbers = np.asarray(array, np.float64).ravel()
        numbers = numbers[np.isfinite(numbers)]
        return bool(np.isclose(numbers[:, None], self.values, rtol=2e-7, atol=0).any())

    def _are_told(self, text: str) -> bool:
        return any(_as_text(value) in text for value in self.values)

    def are_in_bytes(self, raw: bytes) -> bool:
        codes = ("<f", "<d", ">f", ">d")
        written = {struct.pack(code, x) for code in codes for x in self.values}
        written |= {_as_text(x).encode() for x in self.values}
        return any(code in raw for code in written)

    def assert_absent(self, *roots: Any) -> None:
        count = 0
        for value in reachable(*roots):
            count += 1
            assert not self.are_in(value), f"a private value is in a {type(value)}"
        assert count > len(roots)


class Slotted:
    __slots__ = ("kept",)

    def __init__(self, kept: Any):
        self.kept = kept


def test_the_search_finds_what_is_hidden():
    secrets = Secrets(FLOAT, COUNT)
    planted = np.full(5, FLOAT, np.float32)

    def default(x: Any = planted) -> Any:
        return x

    def keyword(*, x: Any = planted) -> Any:
        return x

    def attribute() -> None: ...

    attribute.kept = planted  # type: ignore[attr-defined]
    hiding_places = {
        "container": {"a": [(planted,)]},
        "partial": functools.partial(print, planted),
        "closure": lambda: planted,
        "default": default,
        "keyword default": keyword,
        "attribute of a function": attribute,
        "slot": Slotted(planted),
        "view": np.concatenate([np.zeros(9), planted])[:2],
        "array of objects": np.array([None, planted], object),
        "sparse": scipy.sparse.csr_array(planted[None]),
        "bytes": planted.tobytes(),
        "text": f"row 3 holds {FLOAT}",
        "float": [FLOAT],
        "integer": {"count": COUNT},
        "JAX": (jnp.asarray(planted),),
        "compiled constant": jax.make_jaxpr(lambda x: x + planted)(1.0),
        "number of rows": np.zeros(NUM_ROWS),
    }
    for name, place in hiding_places.items():
        with pytest.raises(AssertionError, match="a private value"):
            secrets.assert_absent([place])
            pytest.fail(f"not found in: {name}")
    secrets.assert_absent([np.zeros(3), "text", b"bytes", 12, {"key": 0.5}])


# --- where it is searched -------------------------------------------------------------


@pytest.mark.quick_with("vips", "dpvi", "*sparse")
@pytest.mark.parametrize("case", PLANTED.values(), ids=PLANTED)
def test_private_values_are_found_nowhere(
    case, tmp_path, caplog, capfd, recwarn, monkeypatch
):
    fn, engine, plant = case
    unnoised: list[float] = []
    add_noise = GaussianMechanism.add_noise

    def watched(self: Any, sums: Mapping[str, Any], rng: Any) -> Any:
        for value in sums.values():
            numbers = np.ravel(value)
            # Zeros and whole numbers could be anywhere.
            unnoised.extend(numbers[numbers != np.round(numbers)])
        return add_noise(self, sums, rng)

    monkeypatch.setattr(GaussianMechanism, "add_noise", watched)
    caplog.set_level(logging.DEBUG)
    vi = private_vi(fn, engine)
    args = plant()
    with jax.log_compiles():
        result = vi.run(KEY, *args)
    assert result.engine == ("dpvi" if callable(engine) else engine)
    assert len(unnoised) > 3
    del args
    gc.collect()
    result.save(tmp_path / "fit.nc")
    idata = result.to_arviz(KEY, num_samples=7)
    idata.to_netcdf(str(tmp_path / "posterior.nc"))
    secrets = Secrets(FLOAT, FLOAT**2, COUNT, *unnoised)
    secrets.assert_absent(result)
    # A copy: Python 3.13 shows the collector nothing of an object's own dictionary.
    secrets.assert_absent(dict(vi.__dict__))
    secrets.assert_absent(idata)
    secrets.assert_absent(nv.load(tmp_path / "fit.nc"))
    for path in (tmp_path / "fit.nc", tmp_path / "posterior.nc"):
        assert not secrets.are_in_bytes(path.read_bytes())
    assert set(getattr(idata, "children", None) or idata.groups()) == {"posterior"}
    printed = capfd.readouterr()
    assert "PrivateVI" in printed.err  # The progress bar was there.
    # JAX writes nine digits of each time, and hashes of programs in hexadecimal: among
    # so many digits the five of a planted count stand once in some dozen runs.
    logged = re.sub(r"in [\d.e-]+ sec|\b[0-9a-f]{64}\b", "", caplog.text)
    told = [logged, printed.out, printed.err, str(result), repr(result)]
    told += [result.plan, str(result.privacy), json.dumps(result.privacy.to_dict())]
    told += [str(warning.message) for warning in recwarn]
    for text in told:
        assert not secrets.are_in(text)
    for text in (result.plan, str(result.privacy), str(result)):
        assert str(NUM_ROWS) not in text


def _assert_quotes_nothing(error: BaseException | None, secrets: Secrets) -> None:
    while error is not None:
        secrets.assert_absent([error.args, getattr(error, "__notes__", ())])
        lines = traceback.format_exception(error, chain=False)
        assert not secrets.are_in("".join(lines))
        error = error.__cause__ or error.__context__


SPOILT: dict[str, Callable[[Any, Any], tuple[Any, ...]]] = {
    "lengths differ": lambda X, y: (X, y[:-1]),
    "objects": lambda X, y: (X.astype(object), y),
    "text": lambda X, y: (X.astype(str), y),
    "a list": lambda X, y: (list(X[:, 0]), y),
    "wrong order": lambda X, y: (y, X),
    "a single number": lambda X, y: (X, X[0, 0]),
    "a Python number": lambda X, y: ((X, float(X[0, 0])), y),
    "COO": lambda X, y: (scipy.sparse.coo_array(X), y),
    "masked": lambda X, y: (np.ma.masked_greater(X, 0), y),
    "complex": lambda X, y: (X.astype(complex), y),
    "one dimension too many": lambda X, y: (X[..., None], y),
    "too many": lambda X, y: (X, y, X),
}


@pytest.mark.parametrize("engine", ["vips", "dpvi"])
@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_refusals_quote_no_values(spoil, engine):
    X, y = labelled()
    X[:] = FLOAT
    vi = private_vi(logistic, engine, progress_bar=False)
    with pytest.raises(Exception) as caught:
        vi.run(KEY, *spoil(X, y))
    _assert_quotes_nothing(caught.value, Secrets(FLOAT, lengths=()))


@pytest.mark.parametrize(
    ("fn", "engine"), [(logistic, "vips"), (probit, "dpvi")], ids=["vips", "dpvi"]
)
@pytest.mark.parametrize("broken", ["bounded_sum", "update", "posterior"])
def test_a_run_that_breaks_quotes_no_values(fn, engine, broken, monkeypatch):
    """An error out of an engine after data have been read, as from a full memory."""
    kind = VipsEngine if engine == "vips" else DpviEngine
    original = getattr(kind, broken)
    vi = private_vi(fn, engine, progress_bar=False)

    def breaking(self: Any, *args: Any, **options: Any) -> Any:
        if vi.budget.charges:  # The rehearsal before has seen no data.
            raise MemoryError("out of memory")
        return original(self, *args, **options)

    monkeypatch.setattr(kind, broken, breaking)
    with pytest.raises(MemoryError) as caught:
        vi.run(KEY, *planted_floats())
    _assert_quotes_nothing(caught.value, Secrets(FLOAT))
    Secrets(FLOAT).assert_absent(dict(vi.__dict__))


# --- what can be watched --------------------------------------------------------------


def _shapes(tree: Any) -> Any:
    """Arrays by shape and type; names and public numbers as they are."""

    def described(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray | np.generic | jax.Array):
            return leaf.shape, str(leaf.dtype)
        return repr(leaf)

    return jax.tree.map(described, tree)


def _without_released_numbers(tree: Any) -> Any:
    """The tree with states that lack the numbers in them that are not in arrays.

    They are made of released ones, which depend on rows as the noise lets them.
    """

    def without(leaf: Any) -> Any:
        if isinstance(leaf, VipsState):
            valid = ValidRows(0.0, 0.0)
            return leaf._replace(change=0.0, drift={}, below_noise={}, valid_rows=valid)
        return leaf

    return jax.tree.map(without, tree, is_leaf=lambda x: isinstance(x, VipsState))


class Watched:
    """Everything about a run that an observer could count."""

    def __init__(self, patch: pytest.MonkeyPatch, caplog: Any, capfd: Any):
        self.steps: list[Any] = []
        self._caplog, self._capfd = caplog, capfd
        for kind in (VipsEngine, DpviEngine):
            for name in ("initial_state", "bounded_sum", "update", "posterior"):
                self._watch(patch, kind, name)
        self._watch(patch, GaussianMechanism, "add_noise")
        self._watch(patch, ModelArguments, "take")

    def _watch(self, patch: pytest.MonkeyPatch, kind: type, name: str) -> None:
        original = getattr(kind, name)

        def watching(this: Any, *args: Any, **options: Any) -> Any:
            found = original(this, *args, **options)
            shapes = None
            if name in ("bounded_sum", "update", "take"):
                arrays = [a for a in args if not isinstance(a, np.random.Generator)]
                shapes = tuple(
                    _shapes(_without_released_numbers(tree)) for tree in (arrays, found)
                )
            self.steps.append((name, shapes))
            return found

        patch.setattr(kind, name, watching)

    def run(self, fn: Any, engine: str, args: tuple, **options: Any) -> dict[str, Any]:
        """What a run shows that is prepared anew, its times left out."""
        forget_prepared_fits()
        self.steps.clear()
        self._caplog.clear()
        self._capfd.readouterr()
        vi = private_vi(
            fn, engine, insecure_seed=3, num_steps=4, progress_bar=False, **options
        )
        with warnings.catch_warnings(record=True) as warned, jax.log_compiles():
            warnings.simplefilter("always")
            result = vi.run(KEY, *args)
        for value in result.params.values():
            assert np.all(np.isfinite(value))
        (charge,) = vi.budget.charges
        messages = [record.getMessage() for record in self._caplog.records]

        def without_released(texts: Iterable[str]) -> list[str]:
            """Texts that are not read off released numbers.

            Those are the shares of rows, and what noise hides.
            """
            hidden = [
                f"Noise hides {what} the rows say" for what in ("what", "how much")
            ]
            released = "of the rows", "hardly narrower than its prior", *hidden
            return [text for text in texts if not any(r in text for r in released)]

        statement = result.privacy.to_dict()
        return {
            # Chunks of one step may run at the same time, in any order.
            "calls": sorted(map(repr, self.steps)),
            "order": [n for n, _ in self.steps if n not in ("take", "bounded_sum")],
            "compiled": [m for m in messages if m.startswith("Compiling")],
            "events": charge.events,
            "price": (charge.epsilon, charge.delta),
            # But for what is read off released numbers.
            "statement": {
                **statement,
                "shares": None,
                "remarks": without_released(statement["remarks"]),
            },
            "plan": result.plan,
            "settings": result.settings,
            "params": _shapes(result.params),
            "warnings": without_released(str(warning.message) for warning in warned),
            "printed": read_printed(self._capfd),
        }


HOSTILE = (np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-38, 0.0, 2.0)


def hostile_floats() -> tuple[Any, ...]:
    X, y = labelled()
    for row, value in enumerate(HOSTILE):
        X[row, 1] = value
        X[len(HOSTILE) + row] = value
        y[2 * len(HOSTILE) + row] = value
    return X, y


def hostile_sparse() -> tuple[Any, ...]:
    X, y = hostile_floats()
    X = np.where(np.abs(X) < 0.5, 0, X)
    matrix = scipy.sparse.csr_array(X)
    matrix.indices[[0, 9, 17]] = 10**8, -1, 2**31 - 1
    return matrix, y


def doubles() -> tuple[Any, ...]:
    X, y = labelled()
    return X.astype(np.float64), y


def hostile_doubles() -> tuple[Any, ...]:
    X, y = doubles()
    X[3, 1], X[5, 0], X[7, 1] = 1e300, -1e300, 1e-300
    return X, y


def hostile_counts() -> tuple[Any, ...]:
    ward, visits = planted_counts()
    extremes = (-1, 3, 1000, -1000, 2**31 - 1, -(2**31))
    for row, value in enumerate(extremes):
        ward[row] = value
        visits[len(extremes) + row] = value
    return ward, visits


def all_bad_floats() -> tuple[Any, ...]:
    X, y = labelled()
    return np.full_like(X, np.nan), y


Rows = Callable[[], tuple[Any, ...]]
WATCHED: dict[str, tuple[Callable[..., None], str, tuple[Rows, ...]]] = {
    "vips": (logistic, "vips", (labelled, hostile_floats, all_bad_floats)),
    "vips, doubles": (logistic, "vips", (doubles, hostile_doubles)),
    "vips, sparse": (logistic, "vips", (planted_sparse, hostile_sparse)),
    "vips, ids": (wards, "vips", (planted_counts, hostile_counts)),
    "vips, locals": (
        clusters,
        "vips",
        (lambda: labelled()[:1], lambda: hostile_floats()[:1]),
    ),
    "dpvi": (probit, "dpvi", (labelled, hostile_floats, all_bad_floats)),
    "dpvi, sparse": (probit, "dpvi", (planted_sparse, hostile_sparse)),
    "dpvi, ids": (wards, "dpvi", (planted_counts, hostile_counts)),
}


@pytest.mark.quick_with("vips", "dpvi")
@pytest.mark.parametrize("case", WATCHED.values(), ids=WATCHED)
def test_nothing_that_can_be_watched_depends_on_rows(case, monkeypatch, caplog, capfd):
    """The same shapes and seed: the same calls, shapes, programs, price and output.

    With a declared N nothing differs with the number of rows either, but how many
    chunks are worked through. That depends on the size of each batch, as
    `docs/privacy.md` says under timing; the chunks' length is public.
    """
    fn, engine, variants = case
    watched = Watched(monkeypatch, caplog, capfd)
    # The first run also compiles what all later ones share.
    runs = [watched.run(fn, engine, rows()) for rows in (variants[0], *variants)]
    expected = runs[1]
    num_steps = sum(event.num_steps for event in expected["events"])
    assert expected["order"].count("add_noise") == num_steps
    assert expected["compiled"] and len(expected["calls"]) > 4 * num_steps
    for run in runs[2:]:
        for what, value in expected.items():
            assert run[what] == value, what
    if variants[0] is not labelled:
        return
    few = watched.run(fn, engine, tuple(array[:7] for array in labelled()))
    for run in (expected, few):
        run["calls"] = sorted(set(run["calls"]))
    for what, value in expected.items():
        assert few[what] == value, what


def test_no_noise_means_all_of_the_above_too():
    """Without privacy nothing of a single row is kept either."""
    fn, engine, plant = PLANTED["vips"]
    vi = private_vi(fn, engine, budget=nv.PrivacyBudget(math.inf), progress_bar=False)
    result = vi.run(KEY, *plant())
    Secrets(FLOAT).assert_absent(result, vi.__dict__)


def _printed(X):
    jax.debug.print("{}", X)
    return X


def _kept(X):
    return jax.pure_callback(
        np.asarray, jax.ShapeDtypeStruct(X.shape, X.dtype), X, vmap_method="sequential"
    )


def _called_back(X):
    jax.experimental.io_callback(lambda _: None, None, X)
    return X


@pytest.mark.parametrize("engine", ["auto", "dpvi"])
@pytest.mark.parametrize(
    "look",
    [_printed, _kept, _called_back, jax.vmap(jax.jit(_printed))],
    ids=["print", "pure", "io", "nested"],
)
def test_a_model_that_hands_rows_to_python_is_refused(look, engine, capfd):
    @nv.private(unit="patients")
    def model(X, y=None):
        return logistic(look(X), y)

    X, y = labelled()
    budget = nv.PrivacyBudget(1.0, 1e-5)
    with pytest.raises(nv.UnsafeModelError, match="calls back to Python"):
        nv.PrivateVI(model, budget=budget, engine=engine).run(KEY, X, y)
    assert budget.remaining().epsilon == 1.0
    assert capfd.readouterr().out == ""
