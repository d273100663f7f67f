"""`Schema`: the public facts about a table, and the only source of its encoding."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Shaped

from numpyro_vips.accounting import Relation
from numpyro_vips.errors import did_you_mean, quoted
from numpyro_vips.privacy.budget import PrivacyBudget
from numpyro_vips.schema.columns import Column, Intercept, Interval
from numpyro_vips.schema.design import Design, design_of
from numpyro_vips.schema.encoding import INTERCEPT, ColumnProduct, Encoding
from numpyro_vips.schema.files import opened_table
from numpyro_vips.schema.moments import PrivateMoments, release_moments


class Schema(Encoding, Mapping[str, Column]):
    """What is public of a table's columns: ranges, categories, rules for odd values.

    A mapping from names to columns that cannot change. Rows are encoded one by one:
    what a row becomes depends on that row and the schema alone. Nothing is read off the
    rows and kept, so there is nothing to fit.

        >>> import numpyro_vips as nv
        >>> schema = nv.Schema(
        ...     age=nv.Bounded(0, 120),
        ...     job=nv.Categorical(["nurse", "cook"]),
        ...     ill=nv.Binary(),
        ... )
        >>> features = schema.drop("ill")
        >>> features.design_columns
        ('age', 'job=nurse', 'job=cook', 'job=other')
        >>> people = {"age": [30, 500], "job": ["cook", "spy"], "ill": [True, False]}
        >>> features.encode(people)
        array([[-0.5,  0. ,  1. ,  0. ],
               [ 1. ,  0. ,  0. ,  1. ]])
        >>> schema.response(people, "ill")
        array([1., 0.])

    Args:
      columns: The columns by name, for names that Python does not take as keywords.
      **named: More of them. `intercept=Intercept()` adds a column of ones.

    Raises:
      TypeError, ValueError: These are not columns, or none of a table, or two that are
        encoded under the same name.
    """

    def __init__(
        self, columns: Mapping[str, Column] | None = None, /, **named: Column
    ) -> None:
        if columns is not None and not isinstance(columns, Mapping):
            raise TypeError(
                "Expected columns by name, as in Schema(age=Bounded(0, 120)) or in a "
                f"mapping, got {type(columns).__name__}."
            )
        self._columns = {**(columns or {}), **named}
        for name, column in self._columns.items():
            if not isinstance(column, Column):
                got = type(column).__name__
                if isinstance(column, type):
                    got = f"the class {column.__name__}"
                raise TypeError(
                    f"Expected {name!r} to be a column, such as Bounded(0, 120) or "
                    f"Binary(), got {got}."
                )
            if (name == INTERCEPT) != isinstance(column, Intercept):
                raise ValueError(
                    f"Expected the name {INTERCEPT!r} for Intercept() and for nothing "
                    f"else, got {name!r} for {column!r}."
                )
        if not self._columns.keys() - {INTERCEPT}:
            raise ValueError("Expected a column of the table at least.")
        names = self.design_columns
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ValueError(f"Expected encoded columns to differ, got {twice} twice.")

    def __getitem__(self, name: str) -> Column:
        if name not in self._columns:
            hint = did_you_mean(str(name), self)
            raise KeyError(f"There is no column {name!r}. {hint}".rstrip())
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __eq__(self, other: object) -> bool:
        # Another order is another encoding.
        return isinstance(other, Schema) and [*self.items()] == [*other.items()]

    def __hash__(self) -> int:
        return hash(tuple(self.items()))

    def __repr__(self) -> str:
        lines = [f"    {name!r}: {column!r},\n" for name, column in self.items()]
        return f"Schema({{\n{''.join(lines)}}})"

    def drop(self, *names: str) -> "Schema":
        """The schema of the other columns, as of the features without the response.

            >>> import numpyro_vips as nv
            >>> schema = nv.Schema(age=nv.Bounded(0, 120), ill=nv.Binary())
            >>> list(schema.drop("ill"))
            ['age']

        Args:
          *names: The columns to leave out.

        Raises:
          TypeError: The names are not texts.
          ValueError: There is no such column, or none of the table is left.
        """
        for name in names:
            if not isinstance(name, str):
                raise TypeError(
                    "Expected names of columns one by one, as in "
                    f"drop('ill', 'age'), got {type(name).__name__}."
                )
            self._check(name)
        return Schema({name: self[name] for name in self if name not in names})

    def _check(self, name: str) -> None:
        if name not in self:
            raise ValueError(
                f"Expected {name!r} to be a column of the schema, which has "
                f"{list(self)}. {did_you_mean(name, self)}".rstrip()
            )

    @property
    def terms(self) -> tuple[ColumnProduct, ...]:
        """Each column by itself."""
        return tuple({name: column} for name, column in self.items())

    def design(self, formula: str) -> Design:
        """What a formula takes from a table, by the facts of this schema.

        A term is a column, or a product of several as in `age:job`; `a * b` is short
        for `a + b + a:b`. An intercept is there unless the formula has `0 +`. A column
        `Bounded(low, high, mean=, sd=)` is encoded about its mean in units of `sd`, and
        `scale(age)` and `standardize(age)` say so in the formula; `center(age)` leaves
        the unit as it is. Needs `pip install 'numpyro-vips[formulas]'`.

            >>> import numpyro_vips as nv
            >>> schema = nv.Schema(age=nv.Bounded(0, 100), sex=nv.Binary("f", "m"))
            >>> schema.design("age * sex").design_columns
            ('intercept', 'age', 'sex=m', 'age:sex=m')

        Args:
          formula: Such as `"ill ~ age + job + age:job"`; the response may be left out.
            Categories have the `reference=` of the schema, whatever the formula.

        Returns:
          The design, which encodes and decodes tables as the schema does.

        Raises:
          ImportError: formulae is not installed.
          ValueError: The formula cannot be read, names what the schema does not have,
            or has functions that would be computed from the rows, such as `scale(age)`
            where the schema has no mean and sd of the column.
        """
        return design_of(formula, self)

    # Whatever the caller has asked NumPy to do, no cell may end it once it is charged.
    @np.errstate(all="ignore")
    def private_moments(
        self,
        frame: Any,
        *,
        budget: PrivacyBudget,
        unit: str,
        epsilon: float | None = None,
        delta: float | None = None,
        relation: Relation = "add_or_remove",
        num_rows: int | None = None,
        label: str | None = None,
        insecure_seed: int | None = None,
    ) -> PrivateMoments:
        """Releases means and standard deviations of bounded columns, for a price.

        Those of all columns with a range, `Bounded` and `LogBounded`, come in one
        release, under noise that the ledger pays for before rows are added up.
        Missing numbers are left out; others are moved into their ranges.

            >>> import numpyro_vips as nv
            >>> schema = nv.Schema(age=nv.Bounded(0, 120), ill=nv.Binary())
            >>> people = {"age": np.arange(20.0, 70.0).repeat(200)}
            >>> budget = nv.PrivacyBudget(epsilon=1.0, delta=1e-6)
            >>> moments = schema.private_moments(people, budget=budget, unit="people")
            >>> abs(moments["age"].mean - 44.5) < 5 * moments["age"].mean_noise
            True
            >>> features = schema.drop("ill").standardised(moments)
            >>> print(features.encode(people).std().round())
            1.0
            >>> print(round(budget.remaining().epsilon, 3))
            0.9

        Args:
          frame: A table, as for `encode`.
          budget: The ledger that pays, and whose accountant prices. An infinite one
            adds no noise, unless `epsilon` asks for it.
          unit: Whose rows they are: the name of the plate that fits will protect.
          epsilon, delta: This release's share of the budget; each by default a tenth of
            what is left, but for the delta of a ledger that composes by `"rdp"`, which
            all releases share.
          relation: `"add_or_remove"` or `"replace_one"`, as of the fits of the ledger.
          num_rows: Public number of rows; by default the actual one, which is then
            treated as public.
          label: What the ledger calls the release.
          insecure_seed: An integer that makes the noise repeatable, and so voids the
            guarantee, see `PrivateVI`.

        Returns:
          The moments, for `standardised`; they print as a table beside their noise.

        Raises:
          ImportError, TypeError, ValueError: As `encode`; or no column has a range, or
            the ledger is about other neighbours.
          BudgetExceededError: The ledger cannot pay. In all these cases nothing has
            been charged.
        """
        columns = {n: c for n, c in self.items() if isinstance(c, Interval)}
        if not columns:
            raise ValueError(
                "Expected a column with a range, Bounded(low, high) or LogBounded(low, "
                f"high), got {self!r}."
            )
        frame = opened_table(frame, columns)
        places = [column.place(frame, name) for name, column in columns.items()]
        if len({*map(len, places)}) > 1:
            raise ValueError("Expected the columns of the table to have one length.")
        return release_moments(
            np.stack(places, axis=1),
            columns,
            budget=budget,
            unit=unit,
            epsilon=epsilon,
            delta=delta,
            relation=relation,
            num_rows=num_rows,
            label=label,
            insecure_seed=insecure_seed,
        )

    def standardised(self, moments: PrivateMoments) -> "Schema":
        """The schema that encodes columns about released means, in units of their sds.

        It encodes the same columns under the same names, and `decode` leads back to the
        units of the table.

            >>> import math
            >>> import numpyro_vips as nv
            >>> schema, people = nv.Schema(age=nv.Bounded(0, 120)), {"age": [20, 60]}
            >>> budget = nv.PrivacyBudget(math.inf)  # Prints the same anywhere.
            >>> moments = schema.private_moments(people, budget=budget, unit="people")
            >>> schema.standardised(moments).encode(people).ravel().round(2)
            array([-1.,  1.])

        Args:
          moments: From `private_moments` of this schema or of one with the same facts
            about these columns; of others that it has, nothing is taken.

        Returns:
          The schema; it prints as the code that makes it.

        Raises:
          TypeError: These are no moments.
          ValueError: They are of another range of a column, or of none of the columns.
        """
        if not isinstance(moments, PrivateMoments):
            raise TypeError(
                "Expected moments from Schema.private_moments, got "
                f"{type(moments).__name__}. Means and sds that are public go into the "
                "column: Bounded(low, high, mean=, sd=)."
            )
        columns: dict[str, Column] = dict(self)
        shared = [name for name in self if name in moments.columns]
        if not shared:
            raise ValueError(
                f"Expected moments of {quoted(self)}, got those of "
                f"{quoted(moments.columns)}."
            )
        for name in shared:
            column = columns[name]
            if column != moments.columns[name]:
                raise ValueError(
                    f"Expected moments of {name!r} as {column!r}, got those of it as "
                    f"{moments.columns[name]!r}."
                )
            found = moments[name]
            columns[name] = moments.columns[name].about(found.mean, found.sd)
        return Schema(columns)

    def response(self, frame: Any, name: str) -> Shaped[np.ndarray, " rows"]:
        """One column of the table as a likelihood takes it, not scaled.

            >>> import numpyro_vips as nv
            >>> schema = nv.Schema(age=nv.Bounded(0, 120), ill=nv.Binary("no", "yes"))
            >>> people = {"age": [30.0, 500.0], "ill": ["yes", "?"]}
            >>> schema.response(people, "age"), schema.response(people, "ill")
            (array([ 30., 120.]), array([ 1., nan]))

        Args:
          frame: A table, as for `encode`.
          name: A column of the schema.

        Returns:
          One number for each row: of a range, the number in its own unit, moved into
          the range; of two values, 0 and 1; of categories, their places in the list,
          after which come `"other"` and `"missing"`. What is missing is NaN, and -1 a
          category that has no place. No likelihood supports these, so a fit counts such
          a row as zero.

        Raises:
          ImportError, TypeError, ValueError: As `encode`; or the schema has no such
            column.
        """
        self._check(name)
        return self[name].response(opened_table(frame, {name: self[name]}), name)
