"""The example's data are what they should be, and what readers run does run."""

import json
import math
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import _datasets
import logistic_regression

TINY = ["--no-progress", "--insecure-seed", "0", "--num-steps", "3"]


def assert_rows_are_prepared(dataset: _datasets.Dataset) -> None:
    for rows in (dataset.train_features, dataset.test_features):
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-6)
        assert np.all(rows >= 0.0)
        assert rows.shape[1] == len(dataset.feature_names)
    for labels in (dataset.train_labels, dataset.test_labels):
        assert set(np.unique(labels)) == {0, 1}


def test_breast_cancer_is_within_its_public_ranges():
    dataset = _datasets.load("breast_cancer")
    assert_rows_are_prepared(dataset)
    assert dataset.train_features.shape == (455, 31)
    assert dataset.test_features.shape == (114, 31)
    # 212 of the 569 tumours are malignant.
    assert dataset.train_labels.sum() + dataset.test_labels.sum() == 212
    bunch: Any = _datasets.load_breast_cancer()
    assert list(_datasets.BREAST_CANCER_RANGES) == list(bunch["feature_names"])
    low, high = np.array(list(_datasets.BREAST_CANCER_RANGES.values())).T
    inside = (bunch["data"] >= low) & (bunch["data"] <= high)
    assert inside.mean() > 0.99


def test_preparing_one_row_reads_no_other_row(monkeypatch: pytest.MonkeyPatch):
    bunch: Any = _datasets.load_breast_cancer()
    changed_row = int(np.random.default_rng(0).permutation(569)[7])
    altered = type(bunch)(**bunch)
    altered["data"] = bunch["data"].copy()
    altered["data"][changed_row] *= 1000.0
    before = _datasets.breast_cancer()
    monkeypatch.setattr(_datasets, "load_breast_cancer", lambda: altered)
    after = _datasets.breast_cancer()
    same = np.all(before.train_features == after.train_features, axis=1)
    assert np.flatnonzero(~same).tolist() == [7]
    np.testing.assert_array_equal(before.test_features, after.test_features)


@pytest.mark.thorough
def test_adult_has_the_documented_rows_and_columns(
    shared_data: Callable[[str], Path],
):
    dataset = _datasets.load(str(shared_data("adult")))
    assert_rows_are_prepared(dataset)
    assert dataset.train_features.shape == (39_073, 109)
    assert dataset.test_features.shape == (9_769, 109)
    assert dataset.train_labels.sum() + dataset.test_labels.sum() == 11_687
    # Each of the eight categorical columns marks exactly one category of a row.
    marked = np.count_nonzero(dataset.train_features[:, 6:-1], axis=1)
    assert set(marked) == {8}
    # The split is the first 39,073 rows of the fixed permutation of both files.
    first = np.random.default_rng(0).permutation(48_842)[0]
    ages = [
        int(line.split(",")[0])
        for name, skip in (("adult.data", 0), ("adult.test", 1))
        for line in (shared_data("adult") / name).read_text().splitlines()[skip:]
        if line
    ]
    row = dataset.train_features[0]
    age = row[0] / row[-1] * (90 - 17) + 17
    assert round(float(age)) == ages[first]
    reference = LogisticRegression(fit_intercept=False, max_iter=1000)
    reference.fit(dataset.train_features, dataset.train_labels)
    scores = reference.decision_function(dataset.test_features)
    assert _datasets.auc(dataset.test_labels, scores) >= 0.900


def test_adult_refuses_an_unlisted_category_without_quoting_it(tmp_path: Path):
    row = (
        "39, {}, 77516, Bachelors, 13, Never-married, Adm-clerical, "
        "Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K"
    )
    (tmp_path / "adult.data").write_text(row.format("State-gov") + "\n\n")
    (tmp_path / "adult.test").write_text(
        "|1x3 Cross validator\n" + row.format("Pirate") + ".\n\n"
    )
    with pytest.raises(ValueError, match="'workclass'") as raised:
        _datasets.load(str(tmp_path))
    assert "Pirate" not in str(raised.value)


def write_csv(path: Path, num_rows: int = 200) -> Path:
    rng = np.random.default_rng(1)
    age = rng.uniform(20, 80, num_rows)
    dose = rng.uniform(0, 5, num_rows)
    ill = rng.binomial(1, 1 / (1 + np.exp(2 * dose - 0.1 * age)))
    table = pd.DataFrame({"age": age, "ill": ill, "dose": dose})
    table.to_csv(path, index=False)
    return path


def test_csv_is_scaled_by_the_ranges_given(tmp_path: Path):
    path = write_csv(tmp_path / "patients.csv")
    dataset = _datasets.load(
        str(path), label="ill", ranges=[("age", 0.0, 60.0), ("*", 0.0, 10.0)]
    )
    assert_rows_are_prepared(dataset)
    assert dataset.feature_names == ("age", "dose", "intercept")
    table = pd.read_csv(path).iloc[np.random.default_rng(0).permutation(200)[:160]]
    unit = dataset.train_features / dataset.train_features[:, -1:]
    np.testing.assert_allclose(unit[:, 1], table["dose"] / 10, rtol=1e-5)
    # An age over 60 is moved to the end of its range.
    np.testing.assert_allclose(unit[:, 0], np.minimum(table["age"] / 60, 1), rtol=1e-5)
    np.testing.assert_array_equal(dataset.train_labels, table["ill"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "ill", "ranges": [("age", 0.0, 60.0)]}, "without a range: dose"),
        ({"label": "sick"}, "label='sick'"),
        ({"ranges": [("*", 0.0, 1.0)]}, "'dose' to hold 0 and 1"),
        ({"label": "ill", "ranges": [("*", 1.0, 0.0)]}, "to be increasing"),
        ({"label": "ill", "ranges": [("height", 0.0, 1.0)]}, "height"),
    ],
)
def test_csv_says_what_is_missing(tmp_path: Path, options: dict, message: str):
    path = write_csv(tmp_path / "patients.csv")
    with pytest.raises(ValueError, match=message):
        _datasets.load(str(path), **options)


def test_unknown_data_is_named(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        logistic_regression.main(["--data", "no-such-file.csv"])
    assert "no-such-file.csv" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*insecure_seed")
@pytest.mark.parametrize(
    "engine", ["auto", pytest.param("dpvi", marks=pytest.mark.slow)]
)
def test_example_reports_and_leaves_its_files(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    output = tmp_path / "output"
    json_file = tmp_path / "report.json"
    logistic_regression.main(
        [
            *("--epsilon", "2", "--engine", engine),
            *("--output", str(output), "--json", str(json_file)),
            *TINY,
        ]
    )
    report = json.loads(json_file.read_text())
    assert report["engine"] == ("vips" if engine == "auto" else engine)
    assert report["epsilon"] == 2.0
    assert 0.0 < report["delta"] <= 1e-5
    assert report["auc_nonprivate"] > 0.98
    assert 0.0 <= report["auc"] <= 1.0
    assert report["seconds"] > 0.0
    idata: Any = az.from_netcdf(str(output / "posterior.nc"))
    assert "intercept" in idata.posterior["feature"].to_numpy()
    assert "observed_data" not in list(idata)
    assert (output / "posterior.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "test AUC: private" in printed
    assert "insecure" in printed
    assert re.search(r"^w\[intercept\]", printed, re.MULTILINE)


@pytest.mark.slow
def test_without_privacy_the_example_is_its_own_reference(tmp_path: Path):
    report = logistic_regression.main(
        ["--epsilon", "inf", "--no-progress", "--output", str(tmp_path)]
    )
    assert report["epsilon"] == "inf"
    assert report["auc"] == report["auc_nonprivate"]
    json.dumps(report, allow_nan=False)
    assert not math.isnan(report["auc"])


@pytest.mark.thorough
def test_python_blocks_of_the_readme_run(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    text = (repository / "README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert blocks
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks))
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(script))
    assert (tmp_path / "patients.csv").read_text().startswith("age,dose,ill\n")
    assert names["X"].shape == (5000, 2)
    # What the table was made with, per year and per unit of dose.
    for name, true in (("age", 0.06), ("dose", -0.05)):
        slopes = names["slopes"][name]
        assert abs(float(slopes.mean()) - true) < 6 * float(slopes.std())
        assert float(slopes.std()) < abs(true) / 2
    assert names["predicted"].shape == (1000, 2)
    older = np.diff(names["predicted"].mean(0)).item()
    assert older > 0.3
    assert names["result"].privacy.epsilon <= 1.0
    assert names["fit"].privacy.epsilon == names["result"].privacy.epsilon
