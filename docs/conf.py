"""The documentation site: `sphinx-build -W docs build/docs` makes it; it takes `pip install -e '.[docs]'`.

Pages are Markdown that also reads well where no site is built. What the program knows itself is not
written by hand a second time: `documentation.py` puts the tables of settings and the help of the commands
into the pages, and autodoc puts the docstrings into the reference.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from documentation import as_restructured_text

from marius_py import __version__

project = "marius_py"
author = "marius_py maintainers"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["images"]

myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_numpy_docstring = False
napoleon_use_rtype = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"marius_py {version}"
html_show_copyright = False
html_copy_source = False


def setup(app):  # type: ignore[no-untyped-def]
    """Connect what turns docstrings into reStructuredText."""
    app.connect("autodoc-process-docstring", lambda *event: as_restructured_text(event[-1]), priority=400)
    return {"parallel_read_safe": True}
