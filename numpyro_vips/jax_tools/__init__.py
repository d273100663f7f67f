"""What JAX does not have: sums in double precision, walks through programs.

Open `double_precision.py` first: most of the others are used in the same way, on
a traced program.
"""
