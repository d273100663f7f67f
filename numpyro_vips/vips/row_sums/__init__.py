"""The private side of a step: what rows contribute, clipped and added up.

Nothing here adds noise, so nothing here may leave before the mechanism has.
"""
