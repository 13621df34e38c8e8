"""Settings of the documentation site; `make docs` builds it.

The source directory of sphinx is the root of the repository, so that a link between two pages is the same in the
repository and on the site. `include_patterns` says which files become pages.
"""

import warnings
from pathlib import Path

import mixtura

project = "mixtura"
author = "The mixtura developers"
release = version = mixtura.__version__
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "benchmarks/results/*.md",
    "reproduce/results/*.md",
    "studies/results/*.md",
    "studies/README.md",
    "reproduce/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "CONVENTIONS.md",
]
exclude_patterns = [
    "docs/package.md",
    "docs/templates",
]  # the page of the package index, which has links to no other page
extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx-mathjax-offline",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
suppress_warnings = [
    "myst.xref_missing",  # links to folders; tests/test_docs.py checks that they exist
    "ref.ref",  # references in docstrings of scikit-learn, to its own guide
    "config.cache",  # sphinx_gallery_conf holds functions
]

templates_path = [str(Path(__file__).parent / "templates")]  # autosummary looks in the source directory
html_theme = "pydata_sphinx_theme"
html_title = "mixtura"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "forward.html"}
html_show_sourcelink = False
# Without pages below, or with a hundred names, which the page of the reference has by groups.
html_sidebars = {
    name: [] for name in ("docs/quick_start", "docs/which_estimator", "docs/theory", "docs/api", "docs/api/*")
}
html_theme_options = {
    "navigation_with_keys": False,
    "show_prev_next": False,
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "logo": {"text": "mixtura"},
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
copyright = f"{author}; BSD-3-Clause. mixtura {release}"

myst_enable_extensions = ["colon_fence", "dollarmath", "html_image"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 4

autosummary_generate = True
toc_object_entries_show_parents = "hide"
smartquotes = False  # "auto" is a value
autodoc_typehints = "none"  # numpydoc sections have the types
# Members of these classes, and what scikit-learn adds to every estimator, are described elsewhere.
autodoc_default_options = {
    "members": True,
    "inherited-members": "BaseEstimator,ClassifierMixin,DensityMixin,MetaEstimatorMixin,Module,Enum,tuple",
    "exclude-members": "get_metadata_routing, set_fit_request, set_partial_fit_request, set_predict_request, "
    "set_predict_proba_request, set_score_request, set_transform_request",
}
numpydoc_show_class_members = False

GALLERY = [  # others come after these
    "reading_a_model",
    "pictures_and_deployment",
    "sentence_embeddings",
    "head_of_a_frozen_network",
    "text_topics",
    "mixed_features",
    "plot_discriminative",
    "plot_hybrid",
    "regularised",
    "plot_sparse_mixture",
    "plot_moving_clusters",
]


class GalleryOrder:
    """Sort key: examples for most readers come first."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, name):
        first = Path(name).stem
        return (GALLERY.index(first) if first in GALLERY else len(GALLERY), first)


# Scripts of examples/ are run, and their output and figures become pages.
sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "docs/gallery",
    "within_subsection_order": GalleryOrder,
    "filename_pattern": r"\.py$",
    "ignore_pattern": "__init__",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "image_scrapers": ("matplotlib",),
    "reference_url": {},
}
warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")
