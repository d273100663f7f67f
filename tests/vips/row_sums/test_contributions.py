"""How many rows are worked on together."""

import pytest

from numpyro_vips.jax_tools.row_sums import ROW_ALIGNMENT
from numpyro_vips.vips.row_sums.contributions import MAX_PIECE, piece_size


@pytest.mark.parametrize("bytes_per_row", [1, 2**16, 2**20, 2**26, 2**40])
def test_pieces_leave_no_row_over(bytes_per_row: int) -> None:
    """A row that is worked on beside fewer others is rounded otherwise."""
    size = piece_size(bytes_per_row)
    assert size == 1 or size % ROW_ALIGNMENT == 0
    assert 1 <= size <= MAX_PIECE
    assert size == 1 or size * bytes_per_row <= 2**30
