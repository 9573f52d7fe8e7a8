"""Settings of Sphinx for the site; ``make.py`` puts its sources together."""

from __future__ import annotations

from typing import Any

from pygments.lexers.special import TextLexer

import sbuslib

project = "sbuslib"
author = "sbuslib developers"
copyright = author
version = release = sbuslib.__version__
root_doc = "index"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4

# The reference is of what the package has; Spark and the other extras need not be here.
autodoc_mock_imports = ["duckdb", "numpy", "pandas", "pyarrow", "pyspark"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
python_display_short_literal_types = True
python_maximum_signature_line_length = 80

smartquotes = False  # they make one dash of the two of an option

html_theme = "furo"
html_title = f"sbuslib {version}"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "monokai"


def setup(app: Any) -> None:
    """The packets of the protocol's page are shown as they are."""
    app.add_lexer("packets", TextLexer)
