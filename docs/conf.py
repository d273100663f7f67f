"""Sphinx configuration; `make docs` builds with warnings as errors."""

project = "numpyro_vips"
author = "numpyro_vips developers"
project_copyright = author
extensions = ["myst_parser", "sphinx.ext.mathjax"]
myst_enable_extensions = ["amsmath", "deflist", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "numpyro_vips"
