"""Public facts about the columns of a table, and the encoding that follows from them.

Open `columns.py` first: what is public of a column, and how a cell of it is encoded.
`schema.py` puts columns together, `frames.py` reads them from tables.
"""
