"""Data sets of the examples, with public constants written down beside them.

Nothing here is computed from the rows: ranges, categories and the split are
constants, so preparing the features releases nothing. A value outside its range
is moved to the nearest end of it. These readers run on the data holder's own
machine and may raise on a file's content; no message quotes a value.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score

TRAINING_FRACTION = 0.8

Range = tuple[float, float]

# Measured on digitised images of cell nuclei. Round numbers that hold every
# plausible nucleus: lengths in pixels, the other measures without unit.
BREAST_CANCER_RANGES: dict[str, Range] = {
    "mean radius": (5.0, 30.0),
    "mean texture": (5.0, 40.0),
    "mean perimeter": (40.0, 200.0),
    "mean area": (100.0, 2500.0),
    "mean smoothness": (0.05, 0.2),
    "mean compactness": (0.0, 0.4),
    "mean concavity": (0.0, 0.5),
    "mean concave points": (0.0, 0.2),
    "mean symmetry": (0.1, 0.3),
    "mean fractal dimension": (0.05, 0.1),
    "radius error": (0.0, 3.0),
    "texture error": (0.0, 5.0),
    "perimeter error": (0.0, 25.0),
    "area error": (0.0, 500.0),
    "smoothness error": (0.0, 0.03),
    "compactness error": (0.0, 0.15),
    "concavity error": (0.0, 0.4),
    "concave points error": (0.0, 0.05),
    "symmetry error": (0.0, 0.08),
    "fractal dimension error": (0.0, 0.03),
    "worst radius": (5.0, 40.0),
    "worst texture": (5.0, 50.0),
    "worst perimeter": (40.0, 250.0),
    "worst area": (100.0, 4000.0),
    "worst smoothness": (0.05, 0.25),
    "worst compactness": (0.0, 1.0),
    "worst concavity": (0.0, 1.5),
    "worst concave points": (0.0, 0.3),
    "worst symmetry": (0.1, 0.7),
    "worst fractal dimension": (0.05, 0.2),
}

# The columns of the UCI Adult files, in order. Numeric ones carry their range:
# age is top-coded at 90, capital gain at 99,999 and hours at 99 by the Census;
# the extraction kept ages over 16 and positive hours; education has 16 levels.
# The two amounts span orders of magnitude and are read as log(1 + amount).
ADULT_RANGES: dict[str, Range] = {
    "age": (17.0, 90.0),
    "fnlwgt": (0.0, 1_500_000.0),
    "education-num": (1.0, 16.0),
    "capital-gain": (0.0, float(np.log1p(99_999))),
    "capital-loss": (0.0, float(np.log1p(5_000))),
    "hours-per-week": (1.0, 99.0),
}
ADULT_LOG_COLUMNS = ("capital-gain", "capital-loss")

# As listed in the documentation of the data set (adult.names); "?" stands for
# "unknown" and is a category of its own in the three columns that have it.
ADULT_CATEGORIES: dict[str, tuple[str, ...]] = {
    column: tuple(listed.split())
    for column, listed in {
        "workclass": """
            Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov
            State-gov Without-pay Never-worked ?
        """,
        "education": """
            Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm
            Assoc-voc 9th 7th-8th 12th Masters 1st-4th 10th Doctorate
            5th-6th Preschool
        """,
        "marital-status": """
            Married-civ-spouse Divorced Never-married Separated Widowed
            Married-spouse-absent Married-AF-spouse
        """,
        "occupation": """
            Tech-support Craft-repair Other-service Sales Exec-managerial
            Prof-specialty Handlers-cleaners Machine-op-inspct Adm-clerical
            Farming-fishing Transport-moving Priv-house-serv Protective-serv
            Armed-Forces ?
        """,
        "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
        "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
        "sex": "Female Male",
        "native-country": """
            United-States Cambodia England Puerto-Rico Canada Germany
            Outlying-US(Guam-USVI-etc) India Japan Greece South China Cuba
            Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico
            Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan
            Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand
            Yugoslavia El-Salvador Trinadad&Tobago Peru Hong
            Holand-Netherlands ?
        """,
    }.items()
}
ADULT_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status"),
    *("occupation", "relationship", "race", "sex", "capital-gain", "capital-loss"),
    *("hours-per-week", "native-country", "income"),
)

# The columns of the UCI Abalone file after the sex: lengths in millimetres and weights
# in grams, both divided by 200 by those who published it. Round numbers that hold
# every plausible abalone.
ABALONE_RANGES: dict[str, Range] = {
    "length": (0.0, 1.0),
    "diameter": (0.0, 0.8),
    "height": (0.0, 0.4),
    "whole weight": (0.0, 3.0),
    "shucked weight": (0.0, 1.5),
    "viscera weight": (0.0, 0.8),
    "shell weight": (0.0, 1.0),
}
ABALONE_SEXES = ("M", "F", "I")
# Half of the abalones have that many rings or more.
ABALONE_RINGS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """Rows of L2 norm 1 (the last column is the intercept) with 0/1 labels.

    The first 80 % of a fixed permutation of the rows train, the rest test.
    """

    name: str
    feature_names: tuple[str, ...]
    train_features: np.ndarray
    train_labels: np.ndarray
    test_features: np.ndarray
    test_labels: np.ndarray


def load(
    data: str,
    *,
    label: str | None = None,
    ranges: Sequence[tuple[str, float, float]] = (),
) -> Dataset:
    """Reads the data set that `data` names.

    Args:
      data: `"breast_cancer"`, a folder with the UCI files `adult.data` and
        `adult.test` or with `abalone.data`, or a CSV file with a header line.
      label: The 0/1 column of the CSV file; its last column by default.
      ranges: `(column, low, high)` for the numeric columns of the CSV file; the
        column `"*"` gives the range of those not named.
    """
    if data != "breast_cancer" and Path(data).is_file():
        return csv(Path(data), label=label, ranges=ranges)
    if label is not None or ranges:
        raise ValueError(
            "Expected a CSV file in data, since label or ranges were given; the "
            "labels and ranges of the other data sets are fixed."
        )
    if data == "breast_cancer":
        return breast_cancer()
    if (Path(data) / "abalone.data").is_file():
        return abalone(Path(data))
    if Path(data).is_dir():
        return adult(Path(data))
    raise FileNotFoundError(
        f"Expected data={data!r} to be 'breast_cancer', a folder with adult.data "
        "and adult.test or with abalone.data, or a CSV file."
    )


def breast_cancer() -> Dataset:
    """The Wisconsin diagnostic data that scikit-learn ships; 1 means malignant."""
    bunch: Any = load_breast_cancer()
    table = pd.DataFrame(bunch["data"], columns=list(bunch["feature_names"]))
    malignant = list(bunch["target_names"]).index("malignant")
    return _dataset(
        "breast_cancer",
        _scaled(table, BREAST_CANCER_RANGES),
        (bunch["target"] == malignant).astype(np.int32),
    )


def adult(folder: Path) -> Dataset:
    """The UCI Adult files, both of them; 1 means an income over 50,000 dollars."""
    table = pd.concat(
        [
            read_adult(folder / "adult.data", skiprows=0),
            read_adult(folder / "adult.test", skiprows=1),
        ],
        ignore_index=True,
    )
    income = table["income"].str.rstrip(".")
    if not income.isin(["<=50K", ">50K"]).all():
        raise ValueError("Expected column 'income' to hold <=50K and >50K only.")
    numeric = pd.DataFrame(
        {column: table[column].astype(np.float64) for column in ADULT_RANGES}
    )
    for column in ADULT_LOG_COLUMNS:
        numeric[column] = np.log1p(numeric[column])
    parts = [_scaled(numeric, ADULT_RANGES)]
    for column, categories in ADULT_CATEGORIES.items():
        parts.append(_one_hot(table, column, categories))
    return _dataset(
        "adult",
        pd.concat(parts, axis=1),
        (income == ">50K").to_numpy().astype(np.int32),
    )


def read_abalone(folder: Path) -> pd.DataFrame:
    """The UCI Abalone file: `sex`, seven measurements and the number of `rings`."""
    return pd.read_csv(
        folder / "abalone.data", header=None, names=["sex", *ABALONE_RANGES, "rings"]
    )


def abalone(folder: Path) -> Dataset:
    """The UCI Abalone file; 1 means ten rings or more, which is about 11 years."""
    table = read_abalone(folder)
    features = [_one_hot(table, "sex", ABALONE_SEXES), _scaled(table, ABALONE_RANGES)]
    labels = (table["rings"] >= ABALONE_RINGS).to_numpy().astype(np.int32)
    return _dataset("abalone", pd.concat(features, axis=1), labels)


def csv(
    path: Path,
    *,
    label: str | None = None,
    ranges: Sequence[tuple[str, float, float]] = (),
) -> Dataset:
    """A CSV file with a header line, a 0/1 label column and numeric columns."""
    table = pd.read_csv(path)
    label = str(table.columns[-1]) if label is None else label
    if label not in table.columns:
        raise ValueError(
            f"Expected label={label!r} to be a column of {path.name}: "
            f"{', '.join(map(str, table.columns))}."
        )
    labels = table.pop(label)
    if not labels.isin([0, 1]).all():
        raise ValueError(f"Expected column {label!r} to hold 0 and 1 only.")
    given = {column: (low, high) for column, low, high in ranges}
    everywhere = given.pop("*", None)
    unknown = [column for column in given if column not in table.columns]
    if unknown:
        raise ValueError(f"Expected ranges of existing columns, got {unknown}.")
    if everywhere is not None:
        given = {str(column): everywhere for column in table.columns} | given
    missing = [column for column in table.columns if column not in given]
    if missing:
        raise ValueError(
            f"Columns without a range: {', '.join(map(str, missing))}. Give each a "
            "range known without looking at the rows, or one for all as '*'."
        )
    not_numeric = [
        column
        for column in table.columns
        if not pd.api.types.is_numeric_dtype(table[column])
        or not np.isfinite(table[column]).all()
    ]
    if not_numeric:
        raise ValueError(
            "Expected every feature to be a finite number in each row; replace or "
            f"drop what is not in: {', '.join(map(str, not_numeric))}."
        )
    return _dataset(
        path.stem,
        _scaled(table, {column: given[column] for column in table.columns}),
        labels.to_numpy().astype(np.int32),
    )


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Area under the ROC curve; needs both classes among the labels."""
    return float(roc_auc_score(labels, scores))


def read_adult(path: Path, *, skiprows: int) -> pd.DataFrame:
    """One of the UCI Adult files; `adult.test` starts with a line to skip."""
    return pd.read_csv(
        path,
        header=None,
        names=list(ADULT_COLUMNS),
        skiprows=skiprows,
        skipinitialspace=True,
        keep_default_na=False,
    )


def _scaled(table: pd.DataFrame, ranges: Mapping[str, Range]) -> pd.DataFrame:
    """Maps each column's range to [0, 1] and moves what is outside to the ends."""
    scaled = {}
    for column, (low, high) in ranges.items():
        if not low < high:
            raise ValueError(
                f"Expected the range of {column!r} to be increasing, got "
                f"({low}, {high})."
            )
        scaled[column] = ((table[column] - low) / (high - low)).clip(0.0, 1.0)
    return pd.DataFrame(scaled)


def _one_hot(
    table: pd.DataFrame, column: str, categories: Sequence[str]
) -> pd.DataFrame:
    if not set(table[column]) <= set(categories):
        raise ValueError(f"Column {column!r} holds an unlisted category.")
    return pd.DataFrame(
        {f"{column}={category}": table[column] == category for category in categories},
        dtype=np.float64,
    )


def _dataset(name: str, table: pd.DataFrame, labels: np.ndarray) -> Dataset:
    """Appends the intercept, divides rows by their L2 norm and splits them."""
    features = np.column_stack([table.to_numpy(np.float64), np.ones(len(table))])
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    features = features.astype(np.float32)
    order = np.random.default_rng(0).permutation(len(features))
    train, test = np.split(order, [int(TRAINING_FRACTION * len(features))])
    return Dataset(
        name=name,
        feature_names=(*map(str, table.columns), "intercept"),
        train_features=features[train],
        train_labels=labels[train],
        test_features=features[test],
        test_labels=labels[test],
    )
