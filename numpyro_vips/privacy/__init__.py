"""Bounds, noise, sampling, ledger and statement.

Open `gaussian_mechanism.py` first: the only place where noise is added.
`batch_selection.py` draws the rows, `budget.py` is the ledger, `statement.py`
says what was guaranteed.
"""
