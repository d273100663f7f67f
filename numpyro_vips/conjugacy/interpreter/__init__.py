"""The model's program, read in the algebra of forms.

Open `interpreter.py` first: it runs the traced program, primitive by primitive,
with the rules of the other files.
"""
