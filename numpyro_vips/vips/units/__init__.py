"""In which coordinates statistics are released: units, uncorrelated features."""
