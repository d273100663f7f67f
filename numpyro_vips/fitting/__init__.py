"""Which engine, in which steps; one private step.

A fit is planned before any budget is spent: its engine, what is released in
which step, and the noise of each release. Open `private_step.py` first: there
rows are drawn, their bounded sum is asked for and noise is added, for both
engines.
"""
