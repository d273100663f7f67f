"""Kinds of columns: what is public of each, and how a cell of it is encoded.

A cell becomes a few numbers of bounded L2 norm that depend on it alone: a number its
place in its range, from -1 to 1, or how many standard deviations it lies above a public
mean; a category an indicator for each. All are zero where nothing is known.
"""

import abc
import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from jaxtyping import Float, Int, Shaped

from numpyro_vips import _validate
from numpyro_vips._keywords import naming_arguments
from numpyro_vips._settings import code_of
from numpyro_vips.schema import frames

# Where in their ranges synthetic numbers lie.
SyntheticPlaces = Literal["any", "ends", "listed"]
# For those who expect other names of a range's ends.
_ENDS_BY_PLACE = dict.fromkeys(
    ("min", "max", "lower", "upper"), "the ends in order, as in Bounded(0, 120)"
)
# For columns of texts whose categories are said to be integers.
_IF_TEXTS = (
    "If its cells are texts, name these, as in Binary('no', 'yes') or "
    "Categorical(['a', 'b'])"
)
# The code of a category that has no column of its own.
NO_CATEGORY = -1


class EncodedColumn(NamedTuple):
    """One column of the encoded table: `shift + slope * original`.

    Attributes:
      name: Such as `"age"`, `"log(income)"` or `"job=nurse"`.
      slope: By how much it changes with the original number.
      shift: What an original zero becomes.
    """

    name: str
    slope: float = 1.0
    shift: float = 0.0


class Column(abc.ABC):
    """What is publicly known of one column of a table, and how it is encoded."""

    @abc.abstractmethod
    def encoded_columns(self, name: str) -> tuple[EncodedColumn, ...]:
        """The encoded columns that stand for a column of this name, in order."""

    @abc.abstractmethod
    def encode(self, frame: Any, name: str) -> Float[np.ndarray, "rows width"]:
        """The column `name` of a table, encoded; each row has norm `norm` at most."""

    @property
    def norm(self) -> float:
        """The largest L2 norm of what encodes a cell."""
        return 1.0

    @abc.abstractmethod
    def synthetic(
        self, rng: np.random.Generator, count: int, *, places: SyntheticPlaces
    ) -> Float[np.ndarray, "rows width"]:
        """Rows that `encode` may return, which have nothing to do with any table.

        Nothing is missing in them. Of categories each is as often as another, and those
        that are not listed are among them unless `places` is "listed". Numbers lie
        anywhere in their range, or at its ends if it is "ends".
        """

    @property
    @abc.abstractmethod
    def is_text(self) -> bool:
        """Whether the cells are texts, and not numbers."""

    @abc.abstractmethod
    def response(self, frame: Any, name: str) -> Shaped[np.ndarray, " rows"]:
        """The column `name` of a table as a likelihood takes it."""

    def __repr__(self) -> str:
        return code_of(self)


@dataclasses.dataclass(frozen=True, repr=False)
class _Number(Column):
    """A number, encoded by its place in its range."""

    _: dataclasses.KW_ONLY
    missing: Literal["centre", "indicator"] = "centre"

    def __post_init__(self) -> None:
        _validate.one_of(("centre", "indicator"), missing=self.missing)

    @abc.abstractmethod
    def _range(self) -> tuple[float, float]:
        """What is encoded as -1 and 1, on the scale of `_scaled`."""

    def _scaled(self, response: np.ndarray) -> np.ndarray:
        return response

    def _scaled_name(self, name: str) -> str:
        return name

    @property
    def centre_and_radius(self) -> tuple[float, float]:
        """The middle of the range and half of its length, on the scale of `_scaled`."""
        low, high = self._range()
        radius = (high - low) / 2
        return low + radius, radius

    def _origin_and_unit(self) -> tuple[float, float]:
        """What is encoded as 0, and by how much more as 1, on the same scale."""
        return self.centre_and_radius

    def _ends(self) -> tuple[float, float]:
        """What the ends of the range are encoded as."""
        return -1.0, 1.0

    @property
    def norm(self) -> float:
        """The largest L2 norm of what encodes a cell."""
        longest = max(map(abs, self._ends()))
        return longest if self.missing == "centre" else max(longest, 1.0)

    def encoded_columns(self, name: str) -> tuple[EncodedColumn, ...]:
        origin, unit = self._origin_and_unit()
        place = EncodedColumn(self._scaled_name(name), 1 / unit, -origin / unit)
        if self.missing == "centre":
            return (place,)
        return place, EncodedColumn(f"{name}=missing")

    def encode(self, frame: Any, name: str) -> Float[np.ndarray, "rows width"]:
        origin, unit = self._origin_and_unit()
        place = (self._scaled(self.response(frame, name)) - origin) / unit
        is_missing = np.isnan(place)
        # Rounding may lead out of the range.
        place = np.where(is_missing, 0.0, place.clip(*self._ends()))
        if self.missing == "centre":
            return place[:, None]
        return np.column_stack([place, is_missing])

    def synthetic(
        self, rng: np.random.Generator, count: int, *, places: SyntheticPlaces
    ) -> Float[np.ndarray, "rows width"]:
        low, high = self._ends()
        place = rng.uniform(low, high, count)
        if places == "ends" or self._has_ends_alone:
            place = np.where(place < (low + high) / 2, low, high)
        if self.missing == "centre":
            return place[:, None]
        return np.column_stack([place, np.zeros(count)])

    # Whether no number lies between the ends of the range.
    _has_ends_alone: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True, repr=False)
class Interval(_Number):
    """A number between two others."""

    low: float
    high: float
    _: dataclasses.KW_ONLY
    mean: float | None = None
    sd: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("low", "high"):
            value = getattr(self, name)
            _validate.finite(**{name: value})
            object.__setattr__(self, name, float(value))
        low, high = self._range()
        centre, _ = self.centre_and_radius
        if not low < centre < high:
            raise ValueError(
                f"Expected low={self.low!r} to be less than high={self.high!r}, with "
                "numbers in between."
            )
        self._check_moments()

    def _check_moments(self) -> None:
        if self.mean is None or self.sd is None:
            if self.mean is not self.sd:
                raise ValueError(
                    f"Expected mean={self.mean!r} and sd={self.sd!r} together, or "
                    "neither of them."
                )
            return
        _validate.finite(mean=self.mean, sd=self.sd)
        _validate.positive(sd=self.sd)
        for name in ("mean", "sd"):
            object.__setattr__(self, name, float(getattr(self, name)))
        if not math.isfinite(self.norm):
            raise ValueError(
                f"Expected sd={self.sd!r} not to be that small: a number in the range "
                "would be infinitely many of it from the mean."
            )

    def _origin_and_unit(self) -> tuple[float, float]:
        if self.mean is None or self.sd is None:
            return self.centre_and_radius
        return self.mean, self.sd

    def _ends(self) -> tuple[float, float]:
        if self.mean is None:
            return super()._ends()
        origin, unit = self._origin_and_unit()
        low, high = self._range()
        return (low - origin) / unit, (high - origin) / unit

    def place(self, frame: Any, name: str) -> Float[np.ndarray, " rows"]:
        """Where a number lies in its range, from -1 to 1; NaN where it is missing.

        On the scale that is encoded, such as that of logarithms, and by the range
        alone, also where there is a mean.
        """
        centre, radius = self.centre_and_radius
        place = (self._scaled(self.response(frame, name)) - centre) / radius
        return place.clip(-1.0, 1.0)  # Rounding may lead out of the range.

    def about(self, mean: float, sd: float) -> Self:
        """The column encoded about a mean, in units of a standard deviation."""
        return dataclasses.replace(self, mean=mean, sd=sd)

    @property
    def is_text(self) -> bool:
        return False

    def response(self, frame: Any, name: str) -> Float[np.ndarray, " rows"]:
        return frames.numbers(frame, name).clip(self.low, self.high)


@naming_arguments(**_ENDS_BY_PLACE)
@dataclasses.dataclass(frozen=True, repr=False)
class Bounded(Interval):
    """A number in a public range, encoded linearly from -1 to 1.

    What lies outside, infinity too, is moved to the nearest end.

        >>> Bounded(0, 120).encode({"age": [30, 60, 500]}, "age").ravel()
        array([-0.5,  0. ,  1. ])
        >>> standardised = Bounded(0, 120, mean=45, sd=15)
        >>> standardised.encode({"age": [30, 60, 500]}, "age").ravel()
        array([-1.,  1.,  5.])

    Args:
      low, high: The range, known without the rows.
      missing: What encodes a missing number: `"centre"`, a zero, which is the middle of
        the range, or the mean if it is given, or `"indicator"`, that and a 1 in a
        further column.
      mean, sd: What is encoded as 0, and by how much more as 1, in place of the range;
        known without the rows, or released, see `Schema.private_moments`.

    Raises:
      TypeError, ValueError: There is no such range or rule.
    """

    def _range(self) -> tuple[float, float]:
        return self.low, self.high


@naming_arguments(**_ENDS_BY_PLACE)
@dataclasses.dataclass(frozen=True, repr=False)
class LogBounded(Interval):
    """A positive number in a public range, its logarithm encoded from -1 to 1.

    What lies outside, zero and negative numbers too, is moved to the nearest end.

        >>> LogBounded(1, 10_000).encode({"pay": [0, 100, 10_000]}, "pay").ravel()
        array([-1.,  0.,  1.])

    Args:
      low, high: The range, known without the rows.
      missing: What encodes a missing number: `"centre"`, a zero, which is the geometric
        mean of the range's ends, or the mean if it is given, or `"indicator"`, that and
        a 1 in a further column.
      mean, sd: Of the logarithm: what is encoded as 0, and by how much more as 1, in
        place of the range; known without the rows, or released.

    Raises:
      TypeError, ValueError: There is no such range or rule.
    """

    def __post_init__(self) -> None:
        _validate.positive(low=self.low, high=self.high)
        super().__post_init__()

    def _range(self) -> tuple[float, float]:
        return math.log(self.low), math.log(self.high)

    def _scaled(self, response: np.ndarray) -> np.ndarray:
        return np.log(response)

    def _scaled_name(self, name: str) -> str:
        return f"log({name})"


@naming_arguments()
@dataclasses.dataclass(frozen=True, repr=False)
class Binary(_Number):
    """One of two values, encoded as -1 and 1. Any other counts as missing.

        >>> Binary("no", "yes").encode({"ill": ["yes", "no", "?"]}, "ill").ravel()
        array([ 1., -1.,  0.])

    Args:
      no, yes: The two, both texts or both integers. By default 0 and 1, which False and
        True are as well.
      missing: What encodes a missing value: `"centre"`, a zero, or `"indicator"`, that
        and a 1 in a further column.

    Raises:
      TypeError, ValueError: There are no such values or rule.
    """

    no: str | int = 0
    yes: str | int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, label in zip(
            ("no", "yes"), _labels([self.no, self.yes]), strict=True
        ):
            object.__setattr__(self, name, label)

    _has_ends_alone: ClassVar[bool] = True

    @property
    def is_text(self) -> bool:
        return isinstance(self.yes, str)

    def _range(self) -> tuple[float, float]:
        return 0.0, 1.0

    def _scaled_name(self, name: str) -> str:
        return f"{name}={self.yes}" if isinstance(self.yes, str) else name

    def response(self, frame: Any, name: str) -> Float[np.ndarray, " rows"]:
        codes = _codes_of_cells(
            frame, name, (self.no, self.yes), unknown=NO_CATEGORY, missing=NO_CATEGORY
        )
        return np.where(codes == NO_CATEGORY, np.nan, codes)


@naming_arguments()
@dataclasses.dataclass(frozen=True, repr=False)
class Categorical(Column):
    """One of several values, encoded by an indicator for each.

        >>> jobs = Categorical(["nurse", "cook"])
        >>> [column.name for column in jobs.encoded_columns("job")]
        ['job=nurse', 'job=cook', 'job=other']
        >>> jobs.encode({"job": ["cook", "spy"]}, "job")
        array([[0., 1., 0.],
               [0., 0., 1.]])

    Args:
      categories: A list of texts or of integers, known without the rows.
      reference: The category that others are compared with: it has no indicator, and is
        zeros. Give one where the model has an intercept, which could not be told from
        the sum of all indicators.
      handle_unknown: What encodes a value that is not listed: `"other"`, an indicator
        of this name, or `"ignore"`, zeros.
      missing: What encodes a missing value: `"unknown"`, the same as a value that is
        not listed, or `"indicator"`, an indicator called `"missing"`.

    Raises:
      TypeError, ValueError: There are no such categories or rules.
    """

    categories: Sequence[str | int]
    _: dataclasses.KW_ONLY
    reference: str | int | None = None
    handle_unknown: Literal["other", "ignore"] = "other"
    missing: Literal["unknown", "indicator"] = "unknown"

    def __post_init__(self) -> None:
        object.__setattr__(self, "categories", _labels(self.categories))
        if self.reference is not None:
            _validate.one_of(self.categories, reference=self.reference)
        _validate.one_of(("other", "ignore"), handle_unknown=self.handle_unknown)
        _validate.one_of(("unknown", "indicator"), missing=self.missing)

    def __repr__(self) -> str:
        return code_of(self, categories=repr(list(self.categories)))

    def _codes(self) -> dict[str | int, int]:
        """The code of each label, of `"other"` and `"missing"` where they are some."""
        # A category that is called so is the same label.
        labels = dict.fromkeys(self.categories)
        if self.handle_unknown == "other":
            labels["other"] = None
        if self.missing == "indicator":
            labels["missing"] = None
        return {label: code for code, label in enumerate(labels)}

    def _indicators(self) -> dict[str | int, int]:
        """The labels that have a column of zeros and ones: all but the reference."""
        codes = self._codes()
        if self.reference is not None:
            del codes[self.reference]
        return codes

    def encoded_columns(self, name: str) -> tuple[EncodedColumn, ...]:
        return tuple(EncodedColumn(f"{name}={label}") for label in self._indicators())

    def encode(self, frame: Any, name: str) -> Float[np.ndarray, "rows width"]:
        codes = np.array([*self._indicators().values()], np.int64)
        return (self.response(frame, name)[:, None] == codes).astype(np.float64)

    def synthetic(
        self, rng: np.random.Generator, count: int, *, places: SyntheticPlaces
    ) -> Float[np.ndarray, "rows width"]:
        possible = [*self._codes().values()]
        if places == "listed":
            possible = possible[: len(self.categories)]
        elif self.handle_unknown == "ignore":
            possible.append(NO_CATEGORY)
        drawn = rng.choice(possible, count)
        codes = np.array([*self._indicators().values()], np.int64)
        return (drawn[:, None] == codes).astype(np.float64)

    @property
    def is_text(self) -> bool:
        return isinstance(self.categories[0], str)

    def response(self, frame: Any, name: str) -> Int[np.ndarray, " rows"]:
        codes = self._codes()
        unknown = codes["other"] if self.handle_unknown == "other" else NO_CATEGORY
        missing = codes["missing"] if self.missing == "indicator" else unknown
        return _codes_of_cells(
            frame, name, self.categories, unknown=unknown, missing=missing
        )


@dataclasses.dataclass(frozen=True, repr=False)
class Intercept(Column):
    """A column of ones, which no column of the table is read for.

    >>> from numpyro_vips import Schema
    >>> schema = Schema(age=Bounded(0, 120), intercept=Intercept())
    >>> schema.encode({"age": [30, 90]})
    array([[-0.5,  1. ],
           [ 0.5,  1. ]])
    """

    def encoded_columns(self, name: str) -> tuple[EncodedColumn, ...]:
        return (EncodedColumn(name, slope=0.0, shift=1.0),)

    def encode(self, frame: Any, name: str) -> Float[np.ndarray, "rows width"]:
        return np.ones((1, 1))

    def synthetic(
        self, rng: np.random.Generator, count: int, *, places: SyntheticPlaces
    ) -> Float[np.ndarray, "rows width"]:
        return np.ones((count, 1))

    @property
    def is_text(self) -> bool:
        return False

    def response(self, frame: Any, name: str) -> Shaped[np.ndarray, " rows"]:
        raise ValueError(f"Expected a column of the table, got {name!r}.")


def _labels(given: Sequence[str | int]) -> tuple[str | int, ...]:
    """Different texts, or different integers as Python's own, in the order given."""
    if not isinstance(given, list | tuple | range):
        raise TypeError(
            "Expected categories to be a list, written down without the rows, got "
            f"{type(given).__name__}."
        )
    labels: list[str | int] = []
    for label in given:
        if isinstance(label, str):
            _validate.text(category=label)
            labels.append(str(label))
        else:
            labels.append(operator.index(label))
    kinds = {type(label) for label in labels}
    if len(kinds) != 1 or len(set(labels)) < len(labels):
        raise ValueError(
            "Expected categories to be different texts or different integers, got "
            f"{labels!r}."
        )
    return tuple(labels)


def _codes_of_cells(
    frame: Any,
    name: str,
    labels: Sequence[str | int],
    *,
    unknown: int,
    missing: int,
) -> Int[np.ndarray, " rows"]:
    """The place of each value of a column among the labels."""
    if isinstance(labels[0], str):
        cells: list[Any] = frames.texts(frame, name)
    else:
        cells = frames.numbers(frame, name, if_texts=_IF_TEXTS).tolist()
    places: dict[Any, int] = {label: place for place, label in enumerate(labels)}
    return np.array(
        [
            missing if cell is None or cell != cell else places.get(cell, unknown)
            for cell in cells
        ],
        np.int64,
    )
