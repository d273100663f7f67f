"""Which line of the user's code an error, or an operation of a program, comes from."""

import contextlib
import importlib.util
import linecache
import traceback
from collections.abc import Iterable
from pathlib import Path

import jax.extend.core as jex_core

# Whose lines are not the user's.
_LIBRARIES = ("numpyro_vips", "numpyro", "jax", "jaxlib", "numpy", "scipy")


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


def _text(frames: Iterable[tuple[str, int]]) -> str:
    lines = [(name, number) for name, number in frames if _is_of_user(name)]
    if not lines:
        return ""
    filename, number = lines[-1]
    code = linecache.getline(filename, number).strip()
    where = f", in line {number} of {Path(filename).name}"
    return f"{where}, `{code}`" if code else where


def _is_of_user(filename: str) -> bool:
    path = Path(filename)
    return path != Path(contextlib.__file__) and not any(
        folder in path.parents for folder in _folders()
    )


def _folders() -> list[Path]:
    specs = map(importlib.util.find_spec, _LIBRARIES)
    return [Path(spec.origin).parent for spec in specs if spec and spec.origin]
