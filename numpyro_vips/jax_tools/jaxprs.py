"""Walks through traced programs (jaxprs), and what differs between versions of JAX.

`programs_in` and `equations_of` look at a program, `evaluate` runs one equation by
equation, on arrays or on whatever a caller's rule takes for them. All that has to know
which equations are plain calls asks here.
"""

import dataclasses
import functools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import partial_eval

# Returns the results of an equation, or None to have it treated as any other.
Rule = Callable[[jex_core.JaxprEqn, list[Any]], Sequence[Any] | None]
# Returns that, and what is to be noted of the equation.
NotingRule = Callable[
    [jex_core.JaxprEqn, list[Any]], tuple[Sequence[Any] | None, Sequence[Any]]
]

# Equations that run the program inside them exactly once, on their own operands, so
# that they may be replaced by it. Which parameter it is.
_PLAIN_CALLS = {
    "jit": "jaxpr",  # `jax.jit`, in most functions of JAX too.
    "call": "call_jaxpr",  # JAX's own calls before version 0.12.
    "closed_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",  # Since that version.
}
# They too, but whoever differentiates or maps the program later has to see them whole.
_CALLS_WITH_RULES = {
    "custom_jvp_call": "call_jaxpr",  # It has a derivative of its own,
    "custom_vjp_call": "call_jaxpr",  # this one too,
    "custom_vmap_call": "call",  # this one a rule for batches,
    "remat2": "jaxpr",  # and `jax.checkpoint` computes again in place of storing.
}
# What parameters of equations are collected in, beside mappings.
_COLLECTIONS = (tuple, list, set, frozenset)
# Since JAX 0.12 this stands for many operations, with rules too, each of which has a
# function in place of a program. JAX calls it where the operation is to be inlined.
_WITH_A_FUNCTION = "call_hi_primitive"


def called_program(
    equation: jex_core.JaxprEqn, *, keep_rules: bool = False
) -> jex_core.ClosedJaxpr | None:
    """The program that an equation does nothing but call, once; None if it does more.

    Loops and branches do more, and so does all that is not known.

    Args:
      equation: An equation of a program.
      keep_rules: Whether calls with rules of their own for derivatives and batches
        count as more.
    """
    name = equation.primitive.name
    parameter = _PLAIN_CALLS.get(name)
    if parameter is None and not keep_rules:
        if name == _WITH_A_FUNCTION:
            return _inlined_function(equation)
        parameter = _CALLS_WITH_RULES.get(name)
    return None if parameter is None else closed(equation.params[parameter])


def _inlined_function(equation: jex_core.JaxprEqn) -> jex_core.ClosedJaxpr | None:
    """What JAX runs for an operation that has a function; None if it cannot be seen."""
    avals = [aval_of(atom) for atom in equation.invars]
    if not all(isinstance(aval, ShapedArray) for aval in avals):
        return None  # Such as mutable arrays, and types of the caller's own.
    primitive: Any = equation.primitive

    def run(*operands: Any) -> Any:
        return primitive.to_lojax(*operands, **equation.params)

    like = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type) for x in avals
    ]
    return jax.make_jaxpr(run)(*like)


def programs_in(
    value: Any, enters: Callable[[jex_core.JaxprEqn], bool] = lambda _: True
) -> Iterator[jex_core.ClosedJaxpr]:
    """A program and all programs inside it, each once.

    Args:
      value: A program, or parameters of an equation. Programs are found in tuples,
        lists, sets and mappings too. Not found are those that a derivative rule would
        make, since they do not exist yet.
      enters: Whether to look into an equation.
    """
    return _programs_in(value, enters, {})


def _programs_in(
    value: Any, enters: Callable[[jex_core.JaxprEqn], bool], seen: dict[Any, Any]
) -> Iterator[jex_core.ClosedJaxpr]:
    for leaf in leaves_of(value):
        if not isinstance(leaf, jex_core.ClosedJaxpr | jex_core.Jaxpr):
            continue
        program = closed(leaf)
        # The same equations may stand with several constants.
        identity = (id(program.jaxpr), *map(id, program.consts))
        if identity not in seen:
            seen[identity] = program
            yield program
            for equation in filter(enters, program.jaxpr.eqns):
                inner = equation.params, called_program(equation)
                yield from _programs_in(inner, enters, seen)


def leaves_of(value: Any) -> Iterator[Any]:
    """What is in the tuples, lists, sets and mappings of an equation's parameters."""
    if isinstance(value, _COLLECTIONS):
        for part in value:
            yield from leaves_of(part)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from leaves_of(part)
    else:
        yield value


def equations_of(
    program: jex_core.ClosedJaxpr | jex_core.Jaxpr,
) -> Iterator[jex_core.JaxprEqn]:
    """All equations of a program and of the programs inside it."""
    for inner in programs_in(program):
        yield from inner.jaxpr.eqns


def evaluate(
    program: jex_core.ClosedJaxpr,
    arguments: Iterable[Any],
    rule: Rule,
    *,
    constant: Callable[[Any], Any] = lambda array: array,
    keep_rules: bool = False,
) -> list[Any]:
    """Runs a program, equation by equation, on arrays or on what stands for them.

    Args:
      program: The program.
      arguments: One value for each of its inputs.
      rule: Takes an equation and the values of its operands, and returns the values of
        its results. Where it returns None a call is replaced by its program, which
        goes by the same rule, and any other equation is applied to its operands,
        which must then be arrays.
      constant: Makes a value of an array that the program holds.
      keep_rules: Whether calls are applied as they are where they have rules of their
        own for derivatives and batches. It matters where the evaluation is
        differentiated or mapped.

    Returns:
      The values of the program's outputs.
    """

    def noting(
        equation: jex_core.JaxprEqn, operands: list[Any]
    ) -> tuple[Sequence[Any] | None, Sequence[Any]]:
        return rule(equation, operands), ()

    values, _ = evaluate_and_note(
        program, arguments, noting, constant=constant, keep_rules=keep_rules
    )
    return values


def evaluate_and_note(
    program: jex_core.ClosedJaxpr,
    arguments: Iterable[Any],
    rule: NotingRule,
    *,
    constant: Callable[[Any], Any] = lambda array: array,
    keep_rules: bool = False,
) -> tuple[list[Any], list[Any]]:
    """`evaluate`, and what a rule notes of the equations on the way.

    Args:
      program, arguments, constant, keep_rules: As for `evaluate`.
      rule: As for `evaluate`, with a second result: the notes of this equation.

    Returns:
      The values of the program's outputs, and all notes, in the order of the equations.
    """
    jaxpr, notes = program.jaxpr, []
    values: dict[Any, Any] = {}
    values.update(zip(jaxpr.constvars, map(constant, program.consts), strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        is_literal = isinstance(atom, jex_core.Literal)
        return constant(atom.val) if is_literal else values[atom]

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        results, found = rule(equation, operands)
        notes += found
        if results is None:
            inner = called_program(equation, keep_rules=keep_rules)
            if inner is None:
                results = apply_equation(equation, operands)
            else:
                results, found = evaluate_and_note(
                    inner, operands, rule, constant=constant, keep_rules=keep_rules
                )
                notes += found
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars], notes


def apply_equation(equation: jex_core.JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """Applies one equation to arrays, with the derivative that its author gave it."""
    given = {
        var: operand
        for var, operand in zip(equation.invars, operands, strict=True)
        if not isinstance(var, jex_core.Literal)
    }
    # As a program of its own, since `bind` takes the parameters of custom derivatives
    # in another form than the equation has them, and in each version of JAX another.
    program = _empty_program().replace(
        invars=list(given),
        outvars=equation.outvars,
        eqns=[equation],
        effects=equation.effects,
    )
    closed = jex_core.ClosedJaxpr(program, ())
    return jex_core.jaxpr_as_fun(closed)(*given.values())


@functools.cache
def _empty_program() -> jex_core.Jaxpr:
    return jax.make_jaxpr(lambda: ())().jaxpr


def inlined(
    program: jex_core.ClosedJaxpr, *, keep_rules: bool = False
) -> jex_core.ClosedJaxpr:
    """The program with its calls replaced by their programs, without dead code.

    Args:
      program: The program.
      keep_rules: As for `evaluate`.
    """

    def run(*arguments: Any) -> list[Any]:
        return evaluate(program, arguments, lambda *_: None, keep_rules=keep_rules)

    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in program.in_avals]
    return without_dead_code(jax.make_jaxpr(run)(*shapes))


def without_dead_code(
    program: jex_core.ClosedJaxpr, outputs: Sequence[bool] | None = None
) -> jex_core.ClosedJaxpr:
    """The program, all inputs kept, without what no output needs.

    Such as its unused random keys.

    Args:
      program: The program.
      outputs: Which of its outputs are kept; all by default.
    """
    wanted = [True] * len(program.jaxpr.outvars) if outputs is None else list(outputs)
    jaxpr, _ = partial_eval.dce_jaxpr(program.jaxpr, wanted, instantiate=True)
    return jex_core.ClosedJaxpr(jaxpr, program.consts)


def with_results(
    program: jex_core.ClosedJaxpr, results: Sequence[Any]
) -> jex_core.ClosedJaxpr:
    """The program, all inputs kept, with other variables of it as its outputs."""
    jaxpr = program.jaxpr.replace(outvars=list(results))
    return without_dead_code(jex_core.ClosedJaxpr(jaxpr, program.consts))


def only_use(
    program: jex_core.ClosedJaxpr, variable: Any
) -> tuple[jex_core.JaxprEqn, int] | None:
    """The equation that alone uses a variable, and which of its operands that is.

    Returns:
      None if the variable is used more often than once, not at all, or is an output.
    """
    uses = [
        (equation, place)
        for equation in program.jaxpr.eqns
        for place, operand in enumerate(equation.invars)
        if operand is variable
    ]
    is_output = any(output is variable for output in program.jaxpr.outvars)
    return uses[0] if len(uses) == 1 and not is_output else None


def representatives(program: jex_core.ClosedJaxpr) -> dict[Any, Any]:
    """For each variable that an equation makes, the first one that is made alike.

    Made alike are the results of one pure operation with the same parameters on the
    same variables and literals. They are the same function of the inputs, whatever
    these hold.
    """
    found: dict[Any, Any] = {}
    made: dict[Any, Sequence[Any]] = {}
    for equation in program.jaxpr.eqns:
        if equation.effects:
            continue
        operands = tuple(
            (str(atom.aval), np.asarray(atom.val).tobytes())
            if isinstance(atom, jex_core.Literal)
            else found.get(atom, atom)
            for atom in equation.invars
        )
        given = sorted(equation.params.items())
        parameters = tuple((name, _comparable(value)) for name, value in given)
        key = equation.primitive, operands, parameters
        first = made.setdefault(key, equation.outvars)
        found.update(zip(equation.outvars, first, strict=True))
    return found


class _Itself:
    """Stands for an object that has no hash; equal where it is the same object.

    It keeps the object, so that no later one gets its identity.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _comparable(value: Any) -> Any:
    """What stands for a parameter: equal only where parameters mean the same.

    Equality of Python is too wide for it. 1, 1.0 and True are equal, as are 0.0 and
    -0.0, also inside of tuples, mappings and records, and a derivative or a dtype may
    hang on the difference. So types are compared at every level, and numbers by their
    bytes, by which a NaN equals itself. What has no hash, such as an array, equals only
    itself.
    """
    kind = type(value)
    if isinstance(value, float):
        return kind, struct.pack("<d", value)
    if isinstance(value, complex):
        return kind, struct.pack("<dd", value.real, value.imag)
    if isinstance(value, np.generic):
        return kind, str(value.dtype), value.tobytes()
    if isinstance(value, tuple | list):
        return kind, tuple(map(_comparable, value))
    if isinstance(value, set | frozenset):
        return kind, frozenset(map(_comparable, value))
    if isinstance(value, Mapping):
        items = value.items()
        return kind, tuple((_comparable(k), _comparable(v)) for k, v in items)
    # A record must be equal by its own rule, and its fields by this one.
    is_record = dataclasses.is_dataclass(value) and not isinstance(value, type)
    names = [field.name for field in dataclasses.fields(value)] if is_record else []
    fields = tuple(_comparable(getattr(value, name)) for name in names)
    try:
        hash(value)
    except TypeError:
        return kind, _Itself(value), fields
    return kind, value, fields


def with_used_inputs(
    program: jex_core.ClosedJaxpr, outputs: Sequence[bool] | None = None
) -> tuple[jex_core.ClosedJaxpr, list[bool]]:
    """What some outputs need, without the inputs that they do not depend on.

    Args:
      program: The program.
      outputs: Which of its outputs are kept; all by default.

    Returns:
      The rest of the program, and for each input whether it is kept.
    """
    wanted = [True] * len(program.jaxpr.outvars) if outputs is None else list(outputs)
    jaxpr, used = partial_eval.dce_jaxpr(program.jaxpr, wanted)
    return jex_core.ClosedJaxpr(jaxpr, program.consts), list(used)


def scan_sizes(equation: jex_core.JaxprEqn) -> tuple[int, int]:
    """How many operands of a `scan` are constants, and how many are carried along."""
    params = equation.params
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carried, _ = params["ft_in"].unpack()  # Since JAX 0.12.
    return len(constants), len(carried)


def unrolled_scan(
    equation: jex_core.JaxprEqn,
    operands: Sequence[Any],
    run: Callable[[jex_core.ClosedJaxpr, list[Any]], tuple[Sequence[Any], list[Any]]],
    take: Callable[[Any, int], Any],
) -> tuple[list[Any], list[list[Any]], list[Any]]:
    """A loop of a known number of steps, step by step.

    Args:
      equation: A `scan`.
      operands: Their values.
      run: From the program of a step and its operands to its results, and to what is
        noted of it.
      take: From an array that the loop goes along and the number of a step to the entry
        of this step.

    Returns:
      What is carried at the end; for each other output, its entry of every step, in the
      order of the array that they make; and all notes.
    """
    params, (num_constants, num_carried) = equation.params, scan_sizes(equation)
    constants, rest = operands[:num_constants], operands[num_constants:]
    carried, arrays = list(rest[:num_carried]), rest[num_carried:]
    steps, notes = [], []
    numbers = range(params["length"])
    for number in reversed(numbers) if params["reverse"] else numbers:
        here = [take(array, number) for array in arrays]
        found, noted = run(params["jaxpr"], [*constants, *carried, *here])
        carried = list(found[:num_carried])
        steps.append(found[num_carried:])
        notes += noted
    if params["reverse"]:
        steps.reverse()
    entries = [
        [step[output] for step in steps]
        for output in range(len(equation.outvars) - num_carried)
    ]
    return carried, entries, notes


def chosen_branch(equation: jex_core.JaxprEqn, index: int) -> jex_core.ClosedJaxpr:
    """The program of a `cond` that an index chooses, the nearest if there is none."""
    branches = equation.params["branches"]
    return branches[min(max(index, 0), len(branches) - 1)]


def aval_of(variable: Any) -> Any:
    """Shape and dtype of a variable or literal of a program."""
    return variable.aval


def closed(program: Any) -> jex_core.ClosedJaxpr:
    """The program with its constants; since JAX 0.12 every program has its own."""
    if isinstance(program, jex_core.ClosedJaxpr):
        return program
    return jex_core.ClosedJaxpr(program, ())
