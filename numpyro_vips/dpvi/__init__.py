"""Guides and clipped gradients: the engine for models that are not conjugate.

A row contributes the gradient of its part of the ELBO in the globals. Open `engine.py`
first; `gradients/clipped_gradients.py` is where a row is clipped.
"""
