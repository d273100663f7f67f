"""Compile, certify, E-step, row statistics, M-step: the conjugate engine.

What `conjugacy/` answers is acted on here. A row contributes its expected
sufficient statistics. Open `engine.py` first, a step of a fit; then `program.py`, what
a compiled model is, and `reading.py`, how releases become a posterior.
`bounded_sum.py` is where a row is clipped.
"""
