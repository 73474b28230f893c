"""The documentation site: `make docs`."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "site"))

import docstrings  # noqa: E402
import indexes  # noqa: E402
import reference  # noqa: E402

from anymax.version import __version__  # noqa: E402

project = "anymax"
author = "the anymax authors"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = indexes.INDEX
exclude_patterns = ["site", "_static"]
highlight_language = "none"
# Quotes in docstrings are those of Python.
smartquotes = False

myst_heading_anchors = 3

autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
# Types in signatures may be of other packages, or of a module inside of ours, which have no page.
nitpick_ignore_regex = [("py:class", ".*"), ("py:obj", r"typing\..*")]
# `Units` in a signature: two packages have the name, and the first is meant.
suppress_warnings = ["ref.python"]

html_theme = "furo"
html_title = "anymax"
html_static_path = ["_static"]
html_css_files = ["anymax.css"]
html_copy_source = False
html_show_sourcelink = False


def setup(app):
    app.connect("builder-inited", lambda app: reference.write(DOCS / "reference"))
    app.connect("source-read", _add_contents)
    # Before napoleon, whose markup is no prose.
    app.connect("autodoc-process-docstring", docstrings.process, priority=100)
    app.connect("autodoc-process-signature", _hide_constructor)


def _add_contents(app, docname, source):
    if docname.endswith(indexes.INDEX):
        source[0] += indexes.toctrees(source[0])
    if docname == f"reference/{indexes.INDEX}":
        source[0] += reference.contents()


def _hide_constructor(app, what, name, value, options, signature, returned):
    """Protocols are not called."""
    return ("", None) if getattr(value, "_is_protocol", False) else None
