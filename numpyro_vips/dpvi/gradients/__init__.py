"""Gradients of the bound, clipped row by row, and the step that noisy ones take."""
