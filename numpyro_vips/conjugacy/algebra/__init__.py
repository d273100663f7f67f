"""Sums of products of constants and latents.

Open `terms.py` first: labels, factors and terms; then `forms.py`, sums of terms
and what can be done with them.
"""
