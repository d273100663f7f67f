"""The public side of a step: noisy sums are averaged, and the globals solved for."""
