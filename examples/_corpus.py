"""Corpora of the topic model example: readers, preparation, and a synthetic corpus.

A corpus is a sparse matrix of word counts with a public vocabulary. Preparing a
document reads no other document: brought to a fixed length, or cut to a public number
of distinct words, it changes its own row only. The readers run on the data holder's
own machine and raise on a file's content; no message quotes a value.
"""

import contextlib
import dataclasses
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pandas as pd
import scipy.io
import scipy.sparse as sp
from sklearn.feature_extraction.text import CountVectorizer

# Rows of a docword file that are parsed at a time.
_ENTRIES_PER_CHUNK = 1_000_000
# Drawn words that are worked on at a time.
_DRAWS_PER_CHUNK = 5_000_000
_LARGEST_COUNT = np.iinfo(np.int32).max

# The synthetic corpus: each theme is a topic over its own words and the common ones.
THEMES = {
    "sea": "ship harbour wave sail captain tide anchor island storm whale coast crew",
    "kitchen": "butter flour oven sugar recipe onion salt soup bake pepper garlic bowl",
    "music": "song piano rhythm guitar concert singer chorus drum melody band violin",
    "garden": "seed soil rose leaf root spade bloom hedge orchard weed bulb lawn",
    "court": "judge trial lawyer verdict jury appeal witness crime guilty police law",
    "space": "planet orbit rocket star moon comet galaxy telescope launch solar crater",
}
COMMON_WORDS = "day time people year way thing place work old new great small long"
COMMON_SHARE = 0.25


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus:
    """Documents as bags of words.

    Attributes:
      name: Where it comes from.
      counts: Counts (documents, words) as 32-bit integers; no entry is stored twice.
      vocabulary: The word of each column. It is public.
    """

    name: str
    counts: sp.csr_matrix
    vocabulary: tuple[str, ...]

    @property
    def num_documents(self) -> int:
        return cast(tuple[int, int], self.counts.shape)[0]


def load(
    path: Path,
    vocabulary: Path,
    *,
    text: bool = False,
    columns: Sequence[str] = (),
) -> Corpus:
    """Reads a corpus and its vocabulary; each file may end in `.gz` or `.xz`.

    Args:
      path: `.mtx` (Matrix Market) and `.npz` (scipy.sparse) hold a matrix of counts
        with one row for each document; anything else is a UCI docword file.
      vocabulary: One word a line; the n-th line is the word with id n.
      text: `path` is raw text instead, one document a line. Words are lower-case runs
        of two or more letters and digits, as scikit-learn's `CountVectorizer` splits;
        those outside the vocabulary are dropped.
      columns: With `text`: the file is tab-separated with a header, and a document is
        the text in these columns; quoted text may hold tabs and lines.

    Raises:
      OSError: A file cannot be opened.
      ValueError: A file is damaged or cut short, or the two do not belong together.
    """
    words = read_vocabulary(vocabulary)
    suffix = Path(path.stem if path.suffix in (".gz", ".xz") else path.name).suffix
    if text:
        counts = read_text(path, words, columns=columns)
    elif suffix == ".mtx":
        counts = read_matrix_market(path)
    elif suffix == ".npz":
        counts = read_npz(path)
    else:
        counts = read_docword(path)
    num_words = cast(tuple[int, int], counts.shape)[1]
    if num_words != len(words):
        raise ValueError(
            f"The vocabulary does not match: {path.name} has {num_words} words and "
            f"{vocabulary.name} has {len(words)}. In a matrix, documents are rows."
        )
    return Corpus(name=path.name, counts=counts, vocabulary=words)


def read_vocabulary(path: Path) -> tuple[str, ...]:
    """The words of a file with one word a line."""
    with _reading(path) as file:
        words = [line.decode().strip() for line in file]
    if not words or not all(words):
        raise ValueError(f"{path.name} has an empty line: expected one word in each.")
    if len(set(words)) < len(words):
        raise ValueError(f"{path.name} has the same word in two lines.")
    return tuple(words)


def read_docword(path: Path) -> sp.csr_matrix:
    """Reads the format of the UCI "Bag of Words" collection.

    Three lines with the numbers of documents, words and entries, then one line
    `document word count` for each entry; ids count from 1.
    """
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    with _reading(path) as file:
        num_documents, num_words, num_entries = _docword_header(file, path)
        for entries in _docword_entries(file, path):
            document, word, count = entries.T
            _check_ids("document", document, num_documents, path)
            _check_ids("word", word, num_words, path)
            _check_counts(count, path)
            parts.append(
                (
                    (document - 1).astype(np.int32),
                    (word - 1).astype(np.int32),
                    count.astype(np.int32),
                )
            )
    found = sum(len(part[0]) for part in parts)
    if found != num_entries:
        problem = "is cut short" if found < num_entries else "is damaged"
        raise ValueError(
            f"{path.name} {problem}: its header announces {num_entries} entries and "
            f"{found} follow."
        )
    if not parts:
        empty: Any = np.zeros(0, np.int32)
        parts.append((empty, empty, empty))
    documents, words, counts = (
        np.concatenate(part) for part in zip(*parts, strict=True)
    )
    shape = (num_documents, num_words)
    return _whole_counts(sp.coo_matrix((counts, (documents, words)), shape), path)


def _docword_header(file: BinaryIO, path: Path) -> tuple[int, int, int]:
    lines = [file.readline().split() for _ in range(3)]
    if not all(len(line) == 1 and line[0].isdigit() for line in lines):
        raise ValueError(
            f"{path.name} is no docword file: expected the numbers of documents, words "
            "and entries in its first three lines. For raw text, say so (--text)."
        )
    documents, words, entries = (int(line[0]) for line in lines)
    return documents, words, entries


def _docword_entries(file: BinaryIO, path: Path) -> Iterator[np.ndarray]:
    """The entries in chunks, as integer arrays of shape (entries, 3)."""
    expected = f"Expected three whole numbers in each line of {path.name} after three."
    try:
        chunks = pd.read_csv(
            file,
            sep=r"\s+",
            header=None,
            dtype=np.int64,
            chunksize=_ENTRIES_PER_CHUNK,
        )
        for chunk in chunks:
            if chunk.shape[1] != 3:
                raise ValueError(expected)
            yield chunk.to_numpy()
    except pd.errors.EmptyDataError:
        return
    # pandas quotes what it cannot read: the cause stays out of the message.
    except (ValueError, OverflowError):
        raise ValueError(f"{expected} Counts may not be fractions.") from None


def read_matrix_market(path: Path) -> sp.csr_matrix:
    """Reads a Matrix Market file of counts, one row for each document."""
    with _reading(path) as file:
        try:
            matrix = scipy.io.mmread(cast(Any, file))
        except (ValueError, OverflowError, TypeError) as error:
            raise ValueError(
                f"{path.name} is no complete Matrix Market file: "
                f"{_without_digits(error)}."
            ) from None
    return _whole_counts(matrix, path)


def read_npz(path: Path) -> sp.csr_matrix:
    """Reads a matrix of counts that `scipy.sparse.save_npz` has written."""
    with _reading(path) as file:
        try:
            matrix = cast(Any, sp.load_npz(cast(Any, file)))
            # Ids out of range would be read from foreign memory when converted.
            if hasattr(matrix, "check_format"):
                matrix.check_format(full_check=True)
        except (ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"{path.name} is no complete file of scipy.sparse.save_npz: "
                f"{_without_digits(error)}."
            ) from None
    return _whole_counts(matrix, path)


def read_text(
    path: Path, vocabulary: Sequence[str], *, columns: Sequence[str] = ()
) -> sp.csr_matrix:
    """Counts the words of a vocabulary in raw text, see `load`."""
    with _reading(path) as file:
        if columns:
            try:
                table = pd.read_csv(
                    file,
                    sep="\t",
                    usecols=list(columns),
                    dtype=str,
                    keep_default_na=False,
                )
            except ValueError:
                raise ValueError(
                    f"Expected {path.name} to be a tab-separated table with a header "
                    f"and the columns {', '.join(columns)}."
                ) from None
            documents = table[list(columns)].agg(" ".join, axis=1).tolist()
        else:
            documents = [line.decode() for line in file]
    vectorizer = CountVectorizer(vocabulary=list(vocabulary))
    return _whole_counts(vectorizer.transform(documents), path)


def fixed_length(
    counts: sp.csr_matrix, length: int, seed: int | None = None
) -> sp.csr_matrix:
    """Brings each document to `length` words, drawn from it with replacement.

    As in section 4.2 of the VIPS paper. Every document takes the same number of
    uniform numbers, whatever it holds, so what is drawn for one document never
    depends on another: the guarantee holds for each outcome of the draws, also when
    the seed is known. An empty document stays empty.

    Args:
      counts: Counts (documents, words).
      length: Words in a document afterwards.
      seed: None takes entropy from the operating system.
    """
    rng = np.random.default_rng(seed)
    starts, words, own_counts = _arrays(counts)
    totals = np.asarray(counts.sum(axis=1)).ravel()
    drawn = np.zeros(len(words), np.int32)
    step = max(1, _DRAWS_PER_CHUNK // length)
    for first in range(0, len(totals), step):
        chunk = slice(first, min(first + step, len(totals)))
        entries = slice(starts[chunk.start], starts[chunk.stop])
        # The entry, that is the word, of each token of these documents in turn.
        tokens = np.repeat(np.arange(entries.stop - entries.start), own_counts[entries])
        uniform = rng.random((chunk.stop - chunk.start, length), dtype=np.float32)
        sizes = totals[chunk]
        full = sizes > 0
        places = (uniform[full] * sizes[full, None]).astype(np.int64)
        places += (np.cumsum(sizes) - sizes)[full, None]
        drawn[entries] = np.bincount(
            tokens[places.ravel()], minlength=entries.stop - entries.start
        )
    result = sp.csr_matrix((drawn, words.copy(), starts.copy()), shape=counts.shape)
    result.eliminate_zeros()
    return result


def padded(
    counts: sp.csr_matrix, max_distinct_words: int
) -> tuple[np.ndarray, np.ndarray]:
    """Documents as ids and counts of a fixed width, padded with counts of 0.

    Args:
      counts: Counts (documents, words).
      max_distinct_words: Public width L. A document with more distinct words keeps
        its L most frequent ones.

    Returns:
      ids (documents, L), 16-bit if the vocabulary allows, and counts (documents, L),
      16-bit; larger counts become the largest.
    """
    num_documents, num_words = cast(tuple[int, int], counts.shape)
    small = num_words <= np.iinfo(np.int16).max
    ids = np.zeros((num_documents, max_distinct_words), np.int16 if small else np.int32)
    padded_counts = np.zeros((num_documents, max_distinct_words), np.int16)
    starts, words, own_counts = _arrays(counts)
    sizes = np.diff(starts)
    largest = np.iinfo(np.int16).max
    # Column by column, so that nothing of the size of all entries is made.
    for column in range(min(max_distinct_words, int(sizes.max(initial=0)))):
        rows = np.flatnonzero(sizes > column)
        entries = starts[rows] + column
        ids[rows, column] = words[entries]
        padded_counts[rows, column] = np.minimum(own_counts[entries], largest)
    for row in np.flatnonzero(sizes > max_distinct_words):
        entries = slice(starts[row], starts[row + 1])
        order = np.argsort(-own_counts[entries], kind="stable")[:max_distinct_words]
        ids[row] = words[entries][order]
        padded_counts[row] = np.minimum(own_counts[entries][order], largest)
    return ids, padded_counts


def split(
    counts: sp.csr_matrix, num_held_out: int, seed: int = 0
) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """Training and held-out documents, by a fixed permutation."""
    order = np.random.default_rng(seed).permutation(cast(Any, counts.shape)[0])
    # In the order of the file, which keeps memory access local.
    held_out, training = np.sort(order[:num_held_out]), np.sort(order[num_held_out:])
    return counts[training], counts[held_out]


def generated(num_documents: int = 2000, mean_length: float = 60.0) -> Corpus:
    """A synthetic corpus: every document is a blend of a few of the six `THEMES`."""
    rng = np.random.default_rng(0)
    themes = [words.split() for words in THEMES.values()]
    common = COMMON_WORDS.split()
    vocabulary = sorted({*common, *(word for words in themes for word in words)})
    index = {word: column for column, word in enumerate(vocabulary)}
    topics = np.zeros((len(themes), len(vocabulary)))
    for topic, words in zip(topics, themes, strict=True):
        for share, listed in ((1 - COMMON_SHARE, words), (COMMON_SHARE, common)):
            weights = 1 / np.arange(2, len(listed) + 2)
            topic[[index[word] for word in listed]] = share * weights / weights.sum()
    proportions = rng.dirichlet(np.full(len(themes), 0.2), num_documents)
    lengths = rng.poisson(mean_length, num_documents)
    counts = rng.multinomial(lengths, proportions @ topics).astype(np.int32)
    return Corpus(
        name="synthetic corpus",
        counts=sp.csr_matrix(counts),
        vocabulary=tuple(vocabulary),
    )


def _arrays(counts: sp.csr_matrix) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where each document starts, and the words and counts of all of them."""
    parts: Any = counts
    return parts.indptr, parts.indices, parts.data


# Checks -------------------------------------------------------------------------------


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    """Opens a file, compressed or not; a damaged or cut one is a ValueError."""
    openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
    opener = openers.get(path.suffix, open)
    try:
        with opener(path, "rb") as file:
            yield cast(BinaryIO, file)
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile):
        raise ValueError(
            f"{path.name} is damaged or cut short: it cannot be unpacked."
        ) from None
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not text in UTF-8.") from None


def _check_ids(kind: str, ids: np.ndarray, largest: int, path: Path) -> None:
    if ids.size and (ids.min() < 1 or ids.max() > largest):
        raise ValueError(
            f"{path.name} has a {kind} id outside 1 to {largest}, the range that its "
            "header gives."
        )


def _check_counts(counts: np.ndarray, path: Path) -> None:
    if counts.size and (counts.min() < 0 or counts.max() > _LARGEST_COUNT):
        raise ValueError(
            f"{path.name} has a count that is negative or above {_LARGEST_COUNT}."
        )


def _whole_counts(matrix: Any, path: Path) -> sp.csr_matrix:
    """The matrix as 32-bit counts, after checking that it holds counts."""
    counts = sp.csr_matrix(matrix)
    if counts.dtype.kind not in "biuf":
        raise ValueError(f"Expected {path.name} to hold real numbers.")
    if counts.dtype.kind == "f":
        finite = np.isfinite(counts.data)
        if not np.all(finite) or np.any(counts.data != np.floor(counts.data)):
            raise ValueError(
                f"{path.name} has counts that are not whole numbers, such as "
                "frequencies or weights."
            )
    _check_counts(counts.data, path)
    counts = cast(sp.csr_matrix, counts.astype(np.int32))
    counts.sum_duplicates()
    counts.eliminate_zeros()
    return counts


def _without_digits(error: Exception) -> str:
    """The text of a library's error with numbers, which may be values, left out."""
    text = str(error).strip().rstrip(".")
    return "".join("#" if character.isdigit() else character for character in text)
