"""Sphinx configuration; `make docs` builds with warnings as errors.

Pages with cells of code are notebooks, and run while the site is built.
"""

project = "numpyro_vips"
author = "numpyro_vips developers"
project_copyright = author
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
]
default_role = "literal"  # Names in docstrings stand between single backticks.
autoclass_content = "both"  # Arguments stand at the class or at its __init__.
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_numpy_docstring = False
myst_enable_extensions = ["amsmath", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 600
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "numpyro_vips"
