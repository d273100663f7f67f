"""Files are encoded as tables are; a cell of a CSV file is read by itself."""

import gzip

import numpy as np
import pandas as pd
import pytest

import numpyro_vips as nv

pa = pytest.importorskip("pyarrow")
pytest.importorskip("narwhals")
feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")

SCHEMA = nv.Schema(
    age=nv.Bounded(0, 120, missing="indicator"),
    job=nv.Categorical(["cook", "nurse"], missing="indicator"),
    ill=nv.Binary(),
    region=nv.Categorical([1, 2]),
    intercept=nv.Intercept(),
)
CELLS = {
    "age": [30.0, None, 500.0],
    "unused": ["a", "b", "c"],
    "job": ["cook", None, "spy"],
    "ill": [True, None, False],
    "region": [1, 2, None],
}
EXPECTED = SCHEMA.encode(
    {
        "age": np.array([30.0, np.nan, 500.0]),
        "job": np.array(["cook", None, "spy"], object),
        "ill": np.array([1.0, np.nan, 0.0]),
        "region": np.array([1.0, 2.0, np.nan]),
    }
)


def write_csv(path):
    path.write_text(
        "age,unused,job,ill,region\n30,a,cook,True,1\n,b,,,2\n5e2,c,spy,false,?\n"
    )


WRITERS = {
    "people.csv": write_csv,
    "people.parquet": lambda path: parquet.write_table(pa.table(CELLS), path),
    "people.arrow": lambda path: feather.write_feather(pa.table(CELLS), str(path)),
}


@pytest.mark.parametrize("name", WRITERS)
def test_files_are_encoded_as_their_tables_are(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path)
    for given in (path, str(path)):
        np.testing.assert_array_equal(SCHEMA.encode(given), EXPECTED)
    np.testing.assert_array_equal(SCHEMA.response(path, "ill"), [1, np.nan, 0])


@pytest.mark.parametrize("name", WRITERS)
def test_a_column_that_is_absent_is_named(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path)
    hint = r"Did you mean 'age'\?"
    if name == "people.csv":
        hint = "Commas separate names and cells, without blanks."
    with pytest.raises(ValueError, match=rf"column 'agee'\. {hint}$"):
        nv.Schema(agee=nv.Bounded(0, 1)).encode(path)


TWICE = pa.table([[30.0, 500.0], ["cook", "spy"], [40.0, 50.0]], ["age", "job", "age"])


def write_csv_of_twice(path):
    # A mark of its encoding, an empty line, a line break in a name: Arrow reads them.
    path.write_bytes(
        b'\xef\xbb\xbf\r\n"age",job,"age","a\r\nb"\r\n30,cook,40,1\r\n500,spy,50,2\r\n'
    )


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("people.csv", write_csv_of_twice),
        ("people.parquet", lambda path: parquet.write_table(TWICE, path)),
        ("people.arrow", lambda path: feather.write_feather(TWICE, str(path))),
    ],
)
def test_a_name_that_two_columns_have_is_refused_where_it_is_used(
    tmp_path, name, write
):
    path = tmp_path / name
    write(path)
    schema = nv.Schema(age=nv.Bounded(0, 120))
    for read in (schema.encode, lambda file: schema.response(file, "age")):
        with pytest.raises(ValueError, match=r"to have one column 'age', got 2\.") as e:
            read(path)
        assert "cook" not in str(e.value) and "30" not in str(e.value)
    if name == "people.parquet":
        return  # Of which older versions of Arrow read no column at all.
    jobs = nv.Schema(job=nv.Categorical(["cook"], handle_unknown="ignore"))
    np.testing.assert_array_equal(jobs.encode(path), [[1.0], [0.0]])


def test_a_header_that_python_cannot_read_is_left_to_arrow(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(f"age,{'x' * 200_000}\n30,1\n")
    found = nv.Schema(age=nv.Bounded(0, 120)).encode(path)
    np.testing.assert_array_equal(found, [[-0.5]])


def test_without_a_header_the_first_person_is_not_quoted(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("joe,50\nann,40\n")
    with pytest.raises(ValueError, match="first line") as caught:
        nv.Schema(job=nv.Categorical(["cook", "nurse"])).encode(path)
    assert "joe" not in str(caught.value)


HOSTILE = ["secret", "1e999", "-inf", '"4\n0"', "\x00", "4 0", "é", "0x10", '"unused,"']


@pytest.mark.parametrize("cell", HOSTILE)
def test_a_cell_of_a_csv_file_changes_its_own_row_alone(tmp_path, cell):
    path = tmp_path / "people.csv"
    header, rows = "age,job,ill,region\n", ["30,cook,1,1\n", "40,nurse,0,2\n"]
    path.write_text(header + "".join(rows), encoding="utf-8")
    before = SCHEMA.encode(path)
    for place in range(4):
        cells = ["50", "cook", "1", "1"]
        cells[place] = cell
        odd = ",".join(cells) + "\n"
        path.write_bytes((header + rows[0] + odd + rows[1]).encode("latin-1"))
        found = SCHEMA.encode(path)
        np.testing.assert_array_equal(found[[0, 2]], before)
        assert np.all(np.abs(found) <= 1)


def test_lines_of_another_length_are_left_out_and_not_quoted(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("age,job\n30,cook\nsecret\n40,nurse,secret,secret\n50,nurse\n")
    schema = SCHEMA.drop("ill", "region")
    expected = {"age": [30.0, 50.0], "job": ["cook", "nurse"]}
    np.testing.assert_array_equal(schema.encode(path), schema.encode(expected))


def test_what_is_no_file_of_these_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file"):
        SCHEMA.encode(tmp_path / "absent.csv")
    path = tmp_path / "people.xlsx"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"ends in one of '\.csv'"):
        SCHEMA.encode(path)


@pytest.mark.parametrize("name", ["people.csv", "people.csv.gz"])
def test_a_long_cell_is_no_error(tmp_path, name):
    """Arrow reads blocks of a million bytes, and a cell may be longer than that.

    Compressed, such a cell is a few thousand bytes.
    """
    path = tmp_path / name

    def write(rows):
        content = f"age,job,ill,region\n{rows}".encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)

    write("30,cook,1,1\n")
    before = SCHEMA.encode(path)
    for cell in ("x" * 3_000_000, '"' + "x\n" * 1_500_000 + '"'):
        write(f"40,{cell},1,1\n30,cook,1,1\n")
        np.testing.assert_array_equal(SCHEMA.encode(path)[1:], before)


def columns_of_bytes(cells):
    """Columns of texts with these bytes, which Arrow does not look at."""
    stored = pa.array(cells, pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(cells), stored.buffers())
    wide = pa.array(cells, pa.large_binary())
    yield text
    yield pa.Array.from_buffers(pa.large_string(), len(cells), wide.buffers())
    yield text.dictionary_encode()


@pytest.mark.parametrize("kind", range(3))
def test_a_text_that_is_not_utf_8_changes_its_own_row_alone(tmp_path, kind):
    """Neighbouring tables; the codec's exception would quote the cell."""
    schema = nv.Schema(job=nv.Categorical(["cook", "nurse"], missing="indicator"))
    expected = schema.encode({"job": ["cook", None, "nurse", "spy"]})
    cells = [b"cook", None, b"nurse"]
    for more in ([], [b"spy"], [b"\xffsecret"]):
        column = list(columns_of_bytes([*cells, *more]))[kind]
        table = pa.table({"job": pa.chunked_array([column[:1], column[1:]])})
        parquet.write_table(table, tmp_path / "people.parquet")
        feather.write_feather(table, str(tmp_path / "people.arrow"))
        kept = pd.ArrowDtype(column.type)
        for given in (
            *(table, {"job": column}, tmp_path / "people.parquet"),
            *(
                tmp_path / "people.arrow",
                pd.DataFrame({"job": table["job"]}, dtype=kept),
            ),
        ):
            found = schema.encode(given)
            np.testing.assert_array_equal(found, expected[: len(column)])


def test_an_unknown_text_in_a_dictionary_of_other_things_is_no_error():
    """Python has no date as late as Arrow has."""
    days = pa.array([0, 2**31 - 1], pa.int32()).cast(pa.date32())
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), days)
    schema = nv.Schema(job=nv.Categorical(["cook"], missing="indicator"))
    found = schema.encode(pa.table({"job": column}))
    np.testing.assert_array_equal(found, schema.encode({"job": [1, 2, None]}))
