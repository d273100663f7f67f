"""Where rows lie, if not in arrays: sources, their adapters, and reading ahead.

A source is read a part at a time, so that memory is set by the part, not by the data.
"""
