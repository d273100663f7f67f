"""Clipping norms: from structure, the caller, private histograms, or priors."""
