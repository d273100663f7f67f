"""Puts what a benchmark has measured where the documentation shows it."""

from pathlib import Path

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def put_between_marks(path: Path, text: str) -> None:
    """Replaces what stands between the two marks of a Markdown file.

    Raises:
      SystemExit: The file lacks a mark.
    """
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{path} lacks the marks {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{after}")
