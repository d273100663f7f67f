"""What stands in programs that XLA has compiled."""

import re
from typing import Any


def reads_without_memory(compiled: Any, argument: str) -> set[str]:
    """What of an argument the result depends on other than through a loop's result.

    Args:
      compiled: What `jax.jit(function).lower(...).compile()` returns.
      argument: The name of the function's argument.

    Returns:
      The names of its arrays. Without any, what is read of it in several places has
      been written to memory first; see `jax_tools/materialized.py`.
    """
    text = compiled.as_text()
    found: dict[str, set[str]] = {}
    result = known = None
    for line in text[text.index("\nENTRY") :].splitlines()[2:]:
        parsed = re.match(
            r"\s+(ROOT )?%([\w.\-]+) = (?:\(.*?\)|\S+) ([\w\-]+)\((.*)", line
        )
        if parsed is None:
            continue
        is_root, name, operation, rest = parsed.groups()
        operands = re.findall(r"%([\w.\-]+)", re.split(r", \w+=", rest)[0])
        if operation == "parameter":
            (known,) = re.findall(r'op_name="([^"]*)"', rest)
            found[name] = {known} if known.startswith(argument) else set()
        elif operation == "while" or _calls_a_loop(text, operation, rest):
            found[name] = set()
        else:
            found[name] = set().union(*(found[operand] for operand in operands))
        if is_root:
            result = found[name]
    assert known is not None and result is not None
    return result


def _calls_a_loop(program: str, operation: str, rest: str) -> bool:
    """Whether a call, as XLA writes it since JAX 0.12, is of nothing but a loop."""
    called = re.search(r"to_apply=(%[\w.\-]+)", rest)
    if operation != "call" or called is None:
        return False
    name = re.escape(called.group(1))
    body = re.search(rf"^{name} \(.*?\{{\n(.*?)^\}}", program, re.DOTALL | re.MULTILINE)
    assert body is not None
    lines = [line for line in body.group(1).splitlines() if " parameter(" not in line]
    plain = (" while(", " tuple(", " get-tuple-element(")
    has_loop = any(" while(" in line for line in lines)
    return has_loop and all(any(name in line for name in plain) for line in lines)
