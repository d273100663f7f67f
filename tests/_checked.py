"""What checks annotations while tests run.

jaxtyping's own import hook would check every function, nested ones again each time they
are made, and all arguments twice: a quarter of the time of the tests.
"""

import ast
import dataclasses
import functools
import importlib.abc
import importlib.machinery
import inspect
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jaxtyping
from beartype import BeartypeConf, beartype

_NAME = "__checked__"
_PROMOTION = "jax_numpy_dtype_promotion"
_beartype = beartype(
    conf=BeartypeConf(is_pep484_tower=True, violation_type=jaxtyping.TypeCheckError)
)


def install(packages: Sequence[str], *decorators: Callable[..., Any]) -> None:
    """Puts decorators on what the modules of packages define, from now on.

    On functions and classes of modules, and on methods, closest to the definition for
    functions and last for classes. What functions define inside is left.
    """

    def decorated(definition: Any) -> Any:
        for decorator in decorators:
            definition = decorator(definition)
        return definition

    sys.meta_path.insert(0, _Finder(packages, decorated))


def all_of(definition: Any) -> Any:
    """Checks arguments and results, and the fields of dataclasses."""
    if not isinstance(definition, type):
        return _checked(definition)
    if dataclasses.is_dataclass(definition):
        definition.__init__ = _checked(definition.__init__)
    return definition


def arrays(definition: Any) -> Any:
    """Checks arguments and results that are or hold arrays, and leaves the others.

    Those the package checks itself where users give them, which tests look at. Fields
    of dataclasses are left, too: one that is a pytree holds shapes, or whatever else
    JAX maps over, as often as arrays.
    """
    if isinstance(definition, type):
        return definition
    annotations = {
        name: annotation
        for name, annotation in definition.__annotations__.items()
        if _holds_arrays(annotation)
    }
    if not annotations:
        return definition
    definition.__annotations__ = annotations
    return _checked(definition)


def strict_dtypes(definition: Any) -> Any:
    """Runs functions where JAX promotes no dtypes, so that they say what they mean.

    An array of integers and one of reals, or two of different precision, then need a
    cast to be combined. Python's own numbers do not. A family's `distribution` is
    NumPyro's, and so are the formulas that are asked of it.
    """
    if getattr(definition, "__name__", "") == "distribution":
        return users_dtypes(definition)
    return _with_promotion(definition, "strict")


def users_dtypes(definition: Any) -> Any:
    """Runs functions where JAX promotes dtypes as it usually does.

    For those that run the user's model, or NumPyro, which may rely on that.
    """
    return _with_promotion(definition, "standard")


def _with_promotion(definition: Any, promotion: str) -> Any:
    if isinstance(definition, type) or inspect.isgeneratorfunction(definition):
        return definition

    def run(*args: Any, **kwargs: Any) -> Any:
        # Most callers have it already, and JAX takes longer to set it than to say so.
        if getattr(jax.config, _PROMOTION) == promotion:
            return definition(*args, **kwargs)
        with jax.numpy_dtype_promotion(promotion):
            return definition(*args, **kwargs)

    # Under the module's own name: lines of the user's are those of other modules.
    module = {**globals(), "__name__": definition.__module__}
    named = types.FunctionType(run.__code__, module, closure=run.__closure__)
    return functools.update_wrapper(named, definition)


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Checks a function's annotations, with axes that mean one length in each call."""
    checked = _beartype(function)
    # Names of axes are in annotations of arrays and nowhere else.
    if not any(map(_holds_arrays, function.__annotations__.values())):
        return checked

    # `jaxtyping.jaxtyped` around the function binds all arguments to its signature
    # first, which takes four times as long as this.
    @functools.wraps(checked)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        with jaxtyping.jaxtyped("context"):
            return checked(*args, **kwargs)

    return scoped


def _holds_arrays(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    if isinstance(annotation, type) and issubclass(annotation, jaxtyping.PyTree):
        return True
    return any(_holds_arrays(inner) for inner in typing.get_args(annotation))


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, checked: Callable[..., Any]) -> None:
        super().__init__(name, path)
        self.checked = checked

    def exec_module(self, module: types.ModuleType) -> None:
        # Byte code that others find is not made, nor is any of theirs taken.
        tree = ast.parse(self.get_data(self.path))
        _decorate(tree.body)
        vars(module)[_NAME] = self.checked
        exec(compile(tree, self.path, "exec", dont_inherit=True), vars(module))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, packages: Sequence[str], checked: Callable[..., Any]) -> None:
        self.packages = packages
        self.checked = checked

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if not any(f"{fullname}.".startswith(f"{name}.") for name in self.packages):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self.checked)
        return spec


def _decorate(body: list[ast.stmt]) -> None:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            node.decorator_list.append(_decorator_of(node))
        if isinstance(node, ast.ClassDef):
            node.decorator_list.insert(0, _decorator_of(node))
            _decorate(node.body)


def _decorator_of(node: ast.FunctionDef | ast.ClassDef) -> ast.Name:
    return ast.copy_location(ast.Name(_NAME, ast.Load()), node)
