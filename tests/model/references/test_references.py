"""What code refers to is met, under its name, and is not run."""

import contextvars
import functools
import inspect
import operator
import re
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.handlers import condition

from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.model.references import references as module
from numpyro_vips.model.references.references import Reference, references

DATA = np.arange(12.0)


def met(*roots: Any, **options: Any) -> list[Reference]:
    return list(references(*roots, **options))


def names_of(value: Any, *roots: Any) -> list[str]:
    return [found.name for found in met(*roots) if found.value is value]


def closure(value: Any) -> Callable[[], Any]:
    return lambda: value


class Held:
    __slots__ = ("inside",)

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def method(self) -> Any:
        return self.inside


class Child(dict):
    """A dict with an attribute."""


def child(value: Any) -> Child:
    found = Child(other=1)
    found.attribute = value  # type: ignore[attr-defined]
    return found


def variable(value: Any) -> contextvars.ContextVar:
    found = contextvars.ContextVar("variable", default=None)
    found.set(value)
    return found


def generator(value: Any) -> Iterator[Any]:
    yield value


class Weakly:
    def __init__(self, value: Any) -> None:
        self.value = value


KEPT = Weakly(DATA)
WAYS: dict[str, tuple[Any, str]] = {
    "a closure": (closure(DATA), "value"),
    "a closure of a closure": (closure(closure(DATA)), "value.value"),
    "a default": ((lambda x=DATA: x), "x"),
    "a keyword's default": ((lambda *, x=DATA: x), "x"),
    "a partial": (functools.partial(print, 1, DATA), "args.1"),
    "a partial's keyword": (functools.partial(dict, end=DATA), "end"),
    "slots": (Held(DATA), "inside"),
    "a method": (Held(DATA).method, "self.inside"),
    "a list in a dict": ({"k": ["a", DATA]}, "k.1"),
    "a key": ({(1, "a"): 1, Weakly: DATA}, "value"),
    "a subclass of dict": (child(DATA), "attribute"),
    "a compiled function": (jax.jit(closure(DATA)), "value"),
    "a function of NumPy's making": (np.frompyfunc(closure(DATA), 0, 1), "value"),
    "a mapped function": (jax.vmap(closure(DATA)), "value"),
    "a handler": (condition(print, data={"y": DATA}), "condition.data.y"),
    "a weak reference": (weakref.ref(KEPT), "value"),
    "a proxy": (weakref.proxy(KEPT), "value"),
    "a context variable": (variable(DATA), ""),
    "an iterator": (iter(["a", DATA]), "1"),
    "an array of objects": (np.array([None, DATA], dtype=object), "1"),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_held_is_met_under_its_name(way: str) -> None:
    root, name = WAYS[way]
    assert name in names_of(DATA, root)


@pytest.mark.parametrize(
    "code",
    [
        "DATA + 1",
        "globals()['DA' + 'TA']",
        "eval('DA' + 'TA')",
        "(lambda: 0).__globals__['DA' + 'TA']",
        "getattr(sys.modules['study'], 'DA' + 'TA')",
    ],
)
def test_globals_are_met_where_code_gets_at_them(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = types.ModuleType("study")
    monkeypatch.setitem(sys.modules, "study", study)
    vars(study).update(DATA=DATA, sys=sys)
    exec(f"def model(): return {code}", vars(study))
    model = vars(study)["model"]
    assert any(name.endswith("DATA") for name in names_of(DATA, model))


def test_globals_that_code_does_not_name_are_left_alone() -> None:
    def model(x: Any) -> Any:
        return x + 1

    assert names_of(DATA, model) == []


def test_no_iterator_is_used_up_and_nothing_is_run() -> None:
    class Noisy:
        def __init__(self) -> None:
            self.inside = DATA

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

        def __iter__(self) -> Any:
            raise AssertionError("iterated")

        def __len__(self) -> int:
            raise AssertionError("measured")

        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        def __hash__(self) -> int:
            raise AssertionError("hashed")

        def __call__(self) -> Any:
            raise AssertionError("called")

    items = iter([1, 2, 3])
    made = generator(DATA)
    assert "0.inside" in names_of(DATA, [Noisy(), items, made])
    assert list(items) == [1, 2, 3]
    assert next(made) is DATA


def test_an_object_that_was_met_before_is_numbered_and_not_followed_again() -> None:
    shared = [DATA]
    shared.append(shared)  # type: ignore[arg-type]
    found = met({"a": shared, "b": shared})
    of_shared = [one for one in found if one.value is shared]
    assert [one.earlier is None for one in of_shared] == [True, False, False]
    assert len({one.earlier for one in of_shared[1:]}) == 1
    assert len([one for one in found if one.value is DATA]) == 1


def test_the_entries_of_a_list_of_numbers_are_met_if_asked_for() -> None:
    numbers = [0.5, 1.5, 2.5, 3.5, 4.5]
    (whole,) = (one for one in met(numbers) if one.value is numbers)
    assert whole.array is not None and whole.array.shape == (5,) and whole.is_whole
    assert [one.value for one in met(numbers)] == [numbers]
    each = met(numbers, each_number=True)
    assert [one.value for one in each] == [numbers, *numbers]
    assert not each[0].is_whole


def test_numbers_in_the_code_are_literals() -> None:
    def model() -> Any:
        return (0.1, 0.2, 0.3, 0.4, 0.5)

    def short() -> Any:
        return (0.1, 0.2)

    assert [one.name for one in met(model) if one.array is not None] == ["literal"]
    assert [one.name for one in met(short) if one.array is not None] == []


def test_a_model_that_reads_its_callers_is_refused() -> None:
    def reads_frames() -> Any:
        return inspect.currentframe()

    with pytest.raises(UnsafeModelError, match=r"inspect\.currentframe"):
        met(reads_frames)


def test_what_is_too_much_to_be_searched_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MAX_OBJECTS", 10)
    assert len(met({"a": [["word", i] for i in range(4)]})) > 5
    with pytest.raises(UnsafeModelError, match="more than 10 objects"):
        met({"a": [["word", i] for i in range(10)]})


@pytest.mark.parametrize("is_named", [True, False])
def test_a_model_that_walks_over_frames_is_refused(is_named: bool) -> None:
    def walks() -> Any:
        try:
            raise KeyError
        except KeyError as error:
            return error.__traceback__.tb_frame  # type: ignore

    def looks_up() -> Any:
        try:
            raise KeyError
        except KeyError as error:
            return getattr(error.__traceback__, "tb_frame")  # noqa: B009 # type: ignore

    with pytest.raises(UnsafeModelError, match="uses tb_frame"):
        met(walks if is_named else looks_up)


def formats(error: BaseException) -> str:
    pattern = "{0.tb_frame.f_back.f_locals[rows]}"
    return pattern.format(error.__traceback__)


def gets(error: BaseException) -> Any:
    return operator.attrgetter("__traceback__.tb_frame")(error)


def gets_one_by_one(error: BaseException) -> Any:
    found: Any = error
    for name in ("__traceback__", "tb_frame", "f_back"):
        found = getattr(found, name)
    return found


def evaluates() -> Any:
    return eval("__import__('sys')._getframe(1)")


PATH = "tb_frame.f_back"
GETTER = operator.attrgetter("tb_frame.f_back")
CALLS = {"of": [sys._getframe]}


def holds_a_name(error: BaseException) -> Any:
    return operator.attrgetter(PATH)(error)


def holds_a_getter(error: BaseException) -> Any:
    return GETTER(error.__traceback__)


def holds_a_function() -> Any:
    return CALLS["of"][0](1)


def summarises() -> Any:
    return traceback.StackSummary.extract(traceback.walk_stack(None))


def walks_the_stack() -> Any:
    return list(traceback.walk_stack(None))


def extracts_the_stack() -> Any:
    return traceback.extract_stack()


def imports_here() -> Any:
    import traceback as here

    return here.walk_stack(None)


def imports_a_name() -> Any:
    from inspect import stack

    return stack()


def profiles() -> None:
    sys.setprofile(lambda *_: None)


def traces() -> None:
    sys.settrace(lambda *_: None)


def profiles_threads() -> None:
    threading.setprofile(lambda *_: None)


def gets_the_frame() -> Any:
    return sys._getframe(1)


def gets_the_stack() -> Any:
    return inspect.stack()


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (formats, "tb_frame"),
        (gets, "tb_frame"),
        (gets_one_by_one, "tb_frame"),
        (evaluates, "_getframe"),
        (holds_a_name, "tb_frame"),
        (holds_a_getter, "tb_frame"),
        (holds_a_function, "sys._getframe"),
        (summarises, "traceback.StackSummary"),
        (walks_the_stack, "traceback.walk_stack"),
        (extracts_the_stack, "traceback.extract_stack"),
        (imports_here, "traceback.walk_stack"),
        (imports_a_name, "inspect.stack"),
        (profiles, "sys.setprofile"),
        (traces, "sys.settrace"),
        (profiles_threads, "threading.setprofile"),
        (gets_the_frame, "sys._getframe"),
        (gets_the_stack, "inspect.stack"),
    ],
)
def test_ways_to_the_variables_of_callers_are_refused(function: Any, name: str) -> None:
    """In a function that the model reaches as in itself."""

    def model() -> Any:
        return function

    for root in (function, model):
        with pytest.raises(UnsafeModelError, match=f"uses {re.escape(name)}"):
            met(root)


def test_documents_that_speak_of_frames_are_no_reason() -> None:
    documents = ["Why is f_back None in my traceback?", "a b", "tb_frame, and so on"]
    assert met(closure(documents))
    with pytest.raises(UnsafeModelError, match="uses f_back"):
        met(closure([*documents, "{0.f_back}"]))


def test_names_that_only_contain_those_of_frames_are_no_reason() -> None:
    def model() -> Any:
        """The half_back of_locals, and self_locals."""
        sum_of_locals = {"sum_of_locals": 1.0, "f_backwards": 2.0}
        return jnp.stack([sum_of_locals["sum_of_locals"], jnp.trace(jnp.eye(2))])

    assert met(model)
