"""Is a model conjugate, in which families, and with which statistics?

The folders here answer this and run nothing on rows; `vips/` acts on the
answers. Open `structure/structure.py` first: it puts together what the others
find.
"""
