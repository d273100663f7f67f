"""Readers of corpora, their refusals, and what is done to documents before a fit."""

import gzip
import lzma
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

import _corpus

# Three documents over four words; the second is empty.
COUNTS = np.array([[2, 0, 1, 0], [0, 0, 0, 0], [0, 3, 0, 1]])
WORDS = ("apple", "bread", "cider", "dough")
DOCWORD = "3\n4\n4\n1 1 2\n1 3 1\n3 2 3\n3 4 1\n"


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(WORDS) + "\n")
    return path


def write_docword(folder: Path, text: str = DOCWORD) -> Path:
    path = folder / "docword.txt"
    path.write_text(text)
    return path


def write_docword_gz(folder: Path) -> Path:
    path = folder / "docword.txt.gz"
    path.write_bytes(gzip.compress(DOCWORD.encode()))
    return path


def write_docword_xz(folder: Path) -> Path:
    path = folder / "docword.txt.xz"
    path.write_bytes(lzma.compress(DOCWORD.encode()))
    return path


def write_matrix_market(folder: Path, counts: np.ndarray = COUNTS) -> Path:
    path = folder / "counts.mtx"
    scipy.io.mmwrite(path, sp.coo_matrix(counts))
    return path


def write_matrix_market_gz(folder: Path) -> Path:
    path = folder / "counts.mtx.gz"
    path.write_bytes(gzip.compress(write_matrix_market(folder).read_bytes()))
    return path


def write_npz(folder: Path, counts: np.ndarray = COUNTS) -> Path:
    path = folder / "counts.npz"
    sp.save_npz(path, sp.csr_matrix(counts))
    return path


def write_npz_by_column(folder: Path) -> Path:
    path = folder / "columns.npz"
    sp.save_npz(path, sp.csc_matrix(COUNTS.astype(float)))
    return path


@pytest.mark.parametrize(
    "write",
    [
        write_docword,
        write_docword_gz,
        write_docword_xz,
        write_matrix_market,
        write_matrix_market_gz,
        write_npz,
        write_npz_by_column,
    ],
)
def test_every_format_gives_the_same_corpus(
    write: Callable[[Path], Path], tmp_path: Path, vocabulary: Path
):
    corpus = _corpus.load(write(tmp_path), vocabulary)
    np.testing.assert_array_equal(corpus.counts.toarray(), COUNTS)
    assert corpus.counts.dtype == np.int32
    assert corpus.vocabulary == WORDS
    assert corpus.num_documents == 3


def test_text_counts_the_words_of_the_vocabulary(tmp_path: Path, vocabulary: Path):
    path = tmp_path / "documents.txt"
    path.write_text("Apple, cider; APPLE and zebra\n\nbread bread-dough bread!\n")
    corpus = _corpus.load(path, vocabulary, text=True)
    np.testing.assert_array_equal(corpus.counts.toarray(), COUNTS)


def test_text_can_be_columns_of_a_table(tmp_path: Path, vocabulary: Path):
    path = tmp_path / "documents.tsv.xz"
    table = 'id\ttitle\tbody\n1\tapple\t"cider\nand\tapple"\n2\t\t\n'
    table += "3\tdough\tbread bread bread\n"
    path.write_bytes(lzma.compress(table.encode()))
    corpus = _corpus.load(path, vocabulary, text=True, columns=["title", "body"])
    np.testing.assert_array_equal(corpus.counts.toarray(), COUNTS)
    with pytest.raises(ValueError, match="the columns abstract"):
        _corpus.load(path, vocabulary, text=True, columns=["abstract"])


def test_unsorted_and_repeated_entries_add_up(tmp_path: Path, vocabulary: Path):
    path = write_docword(tmp_path, "3\n4\n5\n3 4 1\n1 3 1\n3 2 1\n1 1 2\n3 2 2\n")
    np.testing.assert_array_equal(
        _corpus.load(path, vocabulary).counts.toarray(), COUNTS
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DOCWORD.replace("3 4 1", "4 4 1"), "document id outside 1 to 3"),
        (DOCWORD.replace("1 1 2", "0 1 2"), "document id outside 1 to 3"),
        (DOCWORD.replace("3 4 1", "3 5 1"), "word id outside 1 to 4"),
        (DOCWORD.replace("3 4 1", "3 0 1"), "word id outside 1 to 4"),
        (DOCWORD.replace("3 4 1", "3 4 -1"), "negative"),
        (DOCWORD.replace("3 4 1", "3 4 3000000000"), "negative or above"),
        (DOCWORD.replace("3 4 1", "3 4 99999999999999999999"), "whole numbers"),
        (DOCWORD.replace("3 2 3", "3 2 1.5"), "fractions"),
        (DOCWORD.replace("3 2 3", "3 2 many"), "whole numbers"),
        (DOCWORD.replace("3 2 3", "3 2"), "whole numbers"),
        (DOCWORD.replace("1 1 2", "1 1 2 7"), "whole numbers"),
        (DOCWORD.replace("3 2 3", "3 2 3 7"), "whole numbers"),
        (DOCWORD.replace("3 4 1\n", ""), "cut short.* 4 entries and 3 follow"),
        (DOCWORD + "3 1 1\n", "damaged.* 4 entries and 5 follow"),
        ("3\n4\n4\n", "cut short.* 4 entries and 0 follow"),
        ("3\n4\n", "no docword file"),
        ("a line of text\n" * 4, "no docword file"),
    ],
)
def test_docword_errors_are_clear(
    text: str, message: str, tmp_path: Path, vocabulary: Path
):
    with pytest.raises(ValueError, match=re.compile(message, re.DOTALL)) as raised:
        _corpus.load(write_docword(tmp_path, text), vocabulary)
    assert "many" not in str(raised.value)
    assert "1.5" not in str(raised.value)


@pytest.mark.parametrize(
    "write", [write_docword_gz, write_docword_xz, write_matrix_market_gz]
)
def test_a_compressed_file_cut_short_is_an_error(
    write: Callable[[Path], Path], tmp_path: Path, vocabulary: Path
):
    path = write(tmp_path)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(ValueError, match="cut short"):
        _corpus.load(path, vocabulary)


def test_a_cut_matrix_is_an_error(tmp_path: Path, vocabulary: Path):
    path = write_matrix_market(tmp_path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(ValueError, match="no complete Matrix Market file"):
        _corpus.load(path, vocabulary)
    path = write_npz(tmp_path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match="no complete file"):
        _corpus.load(path, vocabulary)


@pytest.mark.parametrize(
    ("entry", "message"),
    [("3 5 1", "no complete Matrix Market"), ("0 1 1", "no complete Matrix Market")],
)
def test_a_matrix_market_id_out_of_range_is_an_error(
    entry: str, message: str, tmp_path: Path, vocabulary: Path
):
    path = tmp_path / "counts.mtx"
    path.write_text(
        f"%%MatrixMarket matrix coordinate integer general\n3 4 2\n1 1 2\n{entry}\n"
    )
    with pytest.raises(ValueError, match=message):
        _corpus.load(path, vocabulary)


def test_an_npz_id_out_of_range_is_an_error(tmp_path: Path, vocabulary: Path):
    for kind in (sp.csr_matrix, sp.csc_matrix):
        matrix = kind(COUNTS)
        matrix.indices[-1] = 100
        path = tmp_path / "counts.npz"
        sp.save_npz(path, matrix)
        with pytest.raises(ValueError, match="no complete file"):
            _corpus.load(path, vocabulary)


@pytest.mark.parametrize("write", [write_matrix_market, write_npz])
def test_matrices_hold_whole_counts(
    write: Callable[..., Path], tmp_path: Path, vocabulary: Path
):
    for value, message in ((0.5, "whole numbers"), (np.nan, "whole"), (-1, "negative")):
        bad = COUNTS.astype(float)
        bad[0, 1] = value
        with pytest.raises(ValueError, match=message):
            _corpus.load(write(tmp_path, bad), vocabulary)
    with pytest.raises(ValueError, match="real numbers"):
        _corpus.load(write(tmp_path, COUNTS * 1j), vocabulary)


def test_a_vocabulary_that_does_not_match_is_an_error(tmp_path: Path):
    path = write_docword(tmp_path)
    for text, message in (
        ("apple\nbread\ncider\n", "does not match.* 4 words.* 3"),
        ("apple\nbread\ncider\nbread\n", "same word"),
        ("apple\n\ncider\ndough\n", "empty line"),
        ("", "empty line"),
    ):
        vocabulary = tmp_path / "vocab.txt"
        vocabulary.write_text(text)
        with pytest.raises(ValueError, match=message):
            _corpus.load(path, vocabulary)
    vocabulary.write_bytes(b"\xff\xfe\n")
    with pytest.raises(ValueError, match="UTF-8"):
        _corpus.load(path, vocabulary)


def test_fixed_length_draws_each_document_from_its_own_words(
    monkeypatch: pytest.MonkeyPatch,
):
    # Several chunks, the last of them shorter.
    monkeypatch.setattr(_corpus, "_DRAWS_PER_CHUNK", 2 * 4000)
    counts = sp.csr_matrix(COUNTS)
    drawn = _corpus.fixed_length(counts, 4000, seed=1).toarray()
    np.testing.assert_array_equal(drawn.sum(axis=1), [4000, 0, 4000])
    # Frequencies are within four standard errors of the document's own.
    own = COUNTS[[0, 2]] / COUNTS[[0, 2]].sum(axis=1, keepdims=True)
    tolerance = 4 * np.sqrt(own * (1 - own) / 4000)
    assert np.all(np.abs(drawn[[0, 2]] / 4000 - own) <= tolerance)
    again = _corpus.fixed_length(counts, 4000, seed=1).toarray()
    np.testing.assert_array_equal(drawn, again)
    other = _corpus.fixed_length(counts, 4000).toarray()
    assert np.any(drawn != other)


def test_what_is_drawn_for_one_document_depends_on_no_other():
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.5, (20, 30))
    changed = counts.copy()
    changed[7] = rng.poisson(5.0, 30)
    changed[12] = 0
    before = _corpus.fixed_length(sp.csr_matrix(counts), 50, seed=3).toarray()
    after = _corpus.fixed_length(sp.csr_matrix(changed), 50, seed=3).toarray()
    differ = np.flatnonzero((before != after).any(axis=1))
    assert differ.tolist() == [7, 12]


def test_padding_keeps_what_fits_and_the_most_frequent_words_otherwise():
    counts = sp.csr_matrix(np.array([[1, 5, 0, 2], [0, 0, 0, 0], [0, 0, 7, 0]]))
    ids, padded = _corpus.padded(counts, 3)
    assert ids.dtype == padded.dtype == np.int16
    rebuilt = np.zeros((3, 4), int)
    for row in range(3):
        np.add.at(rebuilt[row], ids[row], padded[row])
    np.testing.assert_array_equal(rebuilt, counts.toarray())
    ids, padded = _corpus.padded(counts, 2)
    assert dict(zip(ids[0].tolist(), padded[0].tolist(), strict=True)) == {1: 5, 3: 2}
    np.testing.assert_array_equal(padded[1:], [[0, 0], [7, 0]])


def test_padding_is_wide_enough_for_large_vocabularies_and_counts():
    dense = np.zeros((1, 32_769), np.int32)
    dense[0, [0, -1]] = 40_000, 3
    ids, padded = _corpus.padded(sp.csr_matrix(dense), 2)
    assert ids.tolist() == [[0, 32_768]]
    assert padded.tolist() == [[32_767, 3]]


def test_the_split_is_fixed_and_complete():
    counts = sp.csr_matrix(np.arange(1, 11)[:, None])
    training, held_out = _corpus.split(counts, 3)
    assert held_out.shape == (3, 1)
    found = np.concatenate([training.toarray(), held_out.toarray()]).ravel()
    np.testing.assert_array_equal(np.sort(found), np.arange(1, 11))
    again = _corpus.split(counts, 3)[1]
    np.testing.assert_array_equal(held_out.toarray(), again.toarray())


def test_the_synthetic_corpus_is_made_of_its_themes():
    corpus = _corpus.generated(num_documents=300)
    index = {word: column for column, word in enumerate(corpus.vocabulary)}
    own = np.array(
        [
            np.asarray(corpus.counts[:, [index[w] for w in words.split()]].sum(axis=1))
            for words in _corpus.THEMES.values()
        ]
    )[..., 0]
    # Most documents are about one theme or two: common words are a quarter of them.
    largest_two = np.sort(own, axis=0)[-2:].sum(axis=0)
    assert (largest_two / own.sum(axis=0)).mean() > 0.8
    share = 1 - own.sum() / corpus.counts.sum()
    assert share == pytest.approx(_corpus.COMMON_SHARE, abs=0.02)


@pytest.mark.thorough
def test_raw_abstracts_are_read(shared_data: Callable[[str], Path]):
    folder = shared_data("arxiv")
    words = _corpus.read_vocabulary(folder / "vocab.arxiv.txt")
    assert len(words) == 8_000
    counts = _corpus.read_text(
        folder / "stat.ME.tsv.xz", words, columns=["title", "abstract"]
    )
    assert counts.shape == (12_566, 8_000)
    tokens = np.asarray(counts.sum(axis=1)).ravel()
    assert 60 <= np.median(tokens) <= 100


@pytest.mark.slow
def test_the_whole_arxiv_corpus_has_the_documented_size(
    shared_data: Callable[[str], Path],
):
    folder = shared_data("arxiv")
    corpus = _corpus.load(folder / "docword.arxiv.txt.xz", folder / "vocab.arxiv.txt")
    assert corpus.counts.shape == (400_000, 8_000)
    assert corpus.counts.nnz == 20_862_750
    assert int(corpus.counts.sum()) == 29_208_938
