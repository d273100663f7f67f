"""Which line of the user's code an error, or an operation of a program, comes from."""

import importlib.util
import linecache
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

import jax.extend.core as jex_core


def line_of_error(error: BaseException) -> str:
    """The user's last line before an error, as `", in line 3 of cox.py, `code`"`.

    Returns:
      The text; empty if there is no such line.
    """
    frames = traceback.walk_tb(error.__traceback__)
    return _text((frame.f_code.co_filename, number) for frame, number in frames)


def line_of_equation(equation: jex_core.JaxprEqn) -> str:
    """The same for the line that an equation was traced from."""
    source = getattr(equation, "source_info", None)
    frames = getattr(getattr(source, "traceback", None), "frames", ())
    # The innermost comes first.
    return _text((frame.file_name, frame.line_num) for frame in reversed(frames))


def is_traced_from(equation: jex_core.JaxprEqn, filename: str) -> bool:
    """Whether a file has called JAX, by which an equation was traced."""
    source = getattr(equation, "source_info", None)
    frames = getattr(getattr(source, "traceback", None), "frames", ())
    callers = (f.file_name for f in frames if not _is_in(f.file_name, _OF_JAX))
    return next(callers, None) == filename


def _text(frames: Iterable[tuple[str, int]]) -> str:
    lines = [(name, number) for name, number in frames if not _is_in(name, _OURS)]
    # Unless the model itself is in a library, such as one of the user's own.
    lines = [line for line in lines if not _is_in(line[0], _INSTALLED)] or lines
    if not lines:
        return ""
    filename, number = lines[-1]
    code = linecache.getline(filename, number).strip()
    where = f", in line {number} of {Path(filename).name}"
    return f"{where}, `{code}`" if code else where


def _folders(packages: Iterable[str]) -> list[Path]:
    specs = map(importlib.util.find_spec, packages)
    return [Path(spec.origin).parent for spec in specs if spec and spec.origin]


# Whose lines are never the user's, and where those of libraries and of Python lie.
_OURS = _folders(("numpyro_vips", "numpyro", "jax", "jaxlib", "numpy", "scipy"))
_OF_JAX = _folders(("jax", "jaxlib"))
_INSTALLED = [
    Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")
]


def _is_in(filename: str, folders: Iterable[Path]) -> bool:
    return any(folder in Path(filename).parents for folder in folders)
