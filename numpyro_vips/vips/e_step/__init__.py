"""The E-step: the posterior of one row's latents, and the bound that it reaches.

`e_step.solve_row` is where it begins.
"""
