"""What releases leave open: noise, clipping and missing information.

From averages of noisy sums to a posterior that knows how they came about. Only released
numbers enter.
"""
