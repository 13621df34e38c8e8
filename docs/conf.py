"""Settings of the documentation site; `make docs` builds it."""

import mixtura

project = "mixtura"
author = "The mixtura developers"
release = version = mixtura.__version__
extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "html_image"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 4
exclude_patterns = ["package.md", "_build"]
html_theme = "pydata_sphinx_theme"
html_title = "mixtura"
html_theme_options = {"navigation_with_keys": False, "show_prev_next": False}
autosummary_generate = True
autodoc_typehints = "none"  # numpydoc sections have the types
numpydoc_show_class_members = False
# Links from guides into the repository (README, results, source): tests/test_docs.py checks that they lead somewhere.
# References in docstrings that come from scikit-learn lead to its own guide.
suppress_warnings = ["myst.xref_missing", "ref.ref"]
