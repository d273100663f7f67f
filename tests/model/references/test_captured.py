import functools
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import scipy.sparse
from numpyro.handlers import condition, mask, scale, substitute

from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.handlers import private
from numpyro_vips.model.references.captured import captured_arrays

ROWS = 7
GLOBAL = np.zeros((ROWS, 2))
MODULE = types.ModuleType("some_data")
MODULE.inner = types.ModuleType("some_data.inner")  # type: ignore[attr-defined]
MODULE.inner.table = np.zeros(ROWS)  # type: ignore[attr-defined]


def plain(X):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("N", X.shape[0]):
        numpyro.sample("y", dist.Normal(w, 1.0), obs=X)


def use_global(X):
    return jnp.sum(GLOBAL) + X


def use_global_in_a_nested_function(X):
    return jax.vmap(lambda x: x + GLOBAL.sum())(X)


def use_module(X):
    return MODULE.inner.table + X  # type: ignore[attr-defined]


def helper(X):
    return use_global(X)


def with_default(X, scale=1.0, prior=GLOBAL, *, loc=GLOBAL[:1]):
    return X


def in_closure(value):
    return lambda X: X + value


class Model:
    shared = np.zeros((1, ROWS))

    def __init__(self):
        self.own = jnp.zeros(ROWS)

    def method(self, X):
        return X + self.own

    def __call__(self, X):
        return use_global(X)


class Slotted:
    __slots__ = ("data",)

    def __init__(self):
        self.data = np.zeros(ROWS)

    def __call__(self, X):
        return X


def with_attribute(X, y=None):
    return X


with_attribute.data = np.zeros(ROWS)  # type: ignore[attr-defined]


def wrapped(fn):
    @functools.wraps(fn)
    def inner(*args):
        return fn(*args)

    return inner


V: Any = np.zeros(ROWS)

CASES = {
    "nothing": (plain, {}),
    "closure": (in_closure(V), {"value": (ROWS,)}),
    "closure of JAX": (in_closure(jnp.zeros((2, 2))), {"value": (2, 2)}),
    "closure of a function": (in_closure(in_closure(V)), {"value.value": (ROWS,)}),
    "global": (use_global, {"GLOBAL": (ROWS, 2)}),
    "nested code": (use_global_in_a_nested_function, {"GLOBAL": (ROWS, 2)}),
    "module": (use_module, {"MODULE.inner.table": (ROWS,)}),
    "helper": (helper, {"use_global.GLOBAL": (ROWS, 2)}),
    "defaults": (with_default, {"prior": (ROWS, 2), "loc": (1, 2)}),
    "partial": (
        functools.partial(with_attribute, V, y=np.zeros((1, 2))),
        {"data": (ROWS,), "args.0": (ROWS,), "y": (1, 2)},
    ),
    "method": (
        Model().method,
        {"self.own": (ROWS,), "self.shared": (1, ROWS), "self.use_global.GLOBAL": None},
    ),
    "object": (
        Model(),
        {"own": (ROWS,), "shared": (1, ROWS), "use_global.GLOBAL": (ROWS, 2)},
    ),
    "slots": (Slotted(), {"data": (ROWS,)}),
    "function attribute": (with_attribute, {"data": (ROWS,)}),
    "wraps": (wrapped(in_closure(V)), {"value": (ROWS,)}),
    "jit": (jax.jit(in_closure(V)), {"value": (ROWS,)}),
    "vmap": (jax.vmap(in_closure(V)), {"value": (ROWS,)}),
    "private": (private(in_closure(V), unit="N"), {"value": (ROWS,)}),
    "condition": (condition(plain, {"y": V}), {"condition.data.y": (ROWS,)}),
    "nested handlers": (
        private(condition(substitute(plain, {"w": V}), {"y": V[:, None]}), unit="N"),
        {"substitute.data.w": (ROWS,), "condition.data.y": (ROWS, 1)},
    ),
    "scale and mask": (
        scale(mask(plain, mask=V > 0), scale=jnp.ones((3,))),
        {"scale.scale": (3,), "mask.mask": (ROWS,)},
    ),
    "distribution": (
        in_closure(dist.Normal(jnp.zeros(ROWS), jnp.ones(1))),
        {"value.loc": (ROWS,), "value.scale": (1,)},
    ),
    "dict": (in_closure({"a": {"b": V}, "n": 3}), {"value.a.b": (ROWS,)}),
    "numbers": (in_closure([1.0] * ROWS), {"value": (ROWS,)}),
    "nested numbers": (in_closure([(1, 2)] * ROWS), {"value": (ROWS, 2)}),
    "list of arrays": (in_closure([np.zeros(3)] * ROWS), {"value": (ROWS, 3)}),
    "ragged list": (
        in_closure({"docs": [np.zeros(3), np.zeros(4)]}),
        {"value.docs.0": (3,), "value.docs.1": (4,), "value.docs": (2,)},
    ),
    "frame": (in_closure(pd.DataFrame({"a": V})), {"value": (ROWS, 1)}),
    "frame in a dict": (in_closure({"t": [pd.Series(V)]}), {"value.t": (1, ROWS)}),
    "sparse": (
        in_closure(scipy.sparse.csr_array((ROWS, 10**9))),
        {"value": (ROWS, 10**9)},
    ),
    "no axes": (in_closure(np.float32(1.0)), {}),
    "zero-dimensional": (in_closure(np.array(1.0)), {}),
    "text": (in_closure(["a", "b"]), {}),
    "keys": (in_closure(jax.random.split(jax.random.key(0), ROWS)), {"value": (ROWS,)}),
}


@pytest.mark.parametrize("case", CASES)
def test_finds_what_the_model_holds(case):
    fn, expected = CASES[case]
    found = {name: array.shape for name, array in captured_arrays(fn).items()}
    known = {
        name: found.get(name) if shape is None else shape
        for name, shape in expected.items()
    }
    assert found == known


def test_a_few_numbers_by_name_are_settings_but_refused_where_they_may_be_rows():
    settings = in_closure({"rate": 0.1, "power": 2.0, "steps": 3})
    assert captured_arrays(settings) == {}
    with pytest.raises(UnsafeModelError, match=r"captures 'value' of shape \(3,\)"):
        captured_arrays(settings, num_rows=3)
    data = in_closure({f"p{i}": 0.1 * i for i in range(5)})
    assert list(captured_arrays(data)) == ["value"]


def test_gives_the_arrays_themselves():
    found = captured_arrays(in_closure({"a": GLOBAL, "b": jnp.arange(3)}))
    assert found["value.a"] is GLOBAL
    np.testing.assert_array_equal(found["value.b"], [0, 1, 2])


def test_finds_the_data_of_handlers_around_the_call():
    with condition(data={"y": V}):
        assert list(captured_arrays(plain)) == ["condition.data.y"]
    assert captured_arrays(plain) == {}


def test_arrays_that_are_being_traced_are_found():
    def inside(x):
        assert captured_arrays(in_closure(x))["value"].shape == (ROWS,)
        return x

    jax.eval_shape(inside, V)


def test_two_arrays_of_one_name_are_both_listed():
    outer = {"a": {"b": V}, "a.b": np.zeros((3, 3))}
    found = captured_arrays(in_closure(outer))
    assert {name: array.shape for name, array in found.items()} == {
        "value.a.b": (ROWS,),
        "value.a.b (2)": (3, 3),
    }


def test_ends_on_circular_references_and_unassigned_variables():
    def recursive(X):
        return recursive(later)

    found = captured_arrays(recursive)
    later = V
    assert found == {}
    assert captured_arrays(recursive)["later"] is later

    circle: dict = {"data": V}
    circle["self"] = circle
    assert list(captured_arrays(in_closure(circle))) == ["value.data"]
    ring: list = [1.0, V]
    ring.append(ring)
    assert list(captured_arrays(in_closure(ring))) == ["value.1"]


def test_an_object_whose_attributes_raise_does_not_stop_the_search():
    class Awkward:
        @property
        def shape(self):
            raise RuntimeError("not yet")

    found = captured_arrays(in_closure((Awkward(), V)))
    assert list(found) == ["value.1"]


def test_leaves_the_interpreter_as_it_was():
    modules = set(sys.modules)
    captured_arrays(CASES["nested handlers"][0])
    assert set(sys.modules) == modules
