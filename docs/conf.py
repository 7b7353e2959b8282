"""How Sphinx builds the documentation: `make docs`. Neither build nor pages need a network."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from IPython.lib.lexers import IPython3Lexer  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

from workbench import __version__  # noqa: E402

project = "Gradient Workbench"
author = "The Gradient Workbench developers"
copyright = author  # noqa: A001 - Sphinx's name
release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "tutorials",
    "generated",
    "short_names",
]
exclude_patterns = ["_ext", "sessions"]
# The live view's figures are for JupyterLab; its output has a picture and a table too.
suppress_warnings = ["mystnb.unknown_mime_type"]

myst_enable_extensions = ["colon_fence", "deflist", "attrs_block", "attrs_inline"]
myst_heading_anchors = 4

# `tutorials` executes the notebooks, and the tests check what it leaves.
nb_execution_mode = "off"
nb_merge_streams = True
nb_ipywidgets_js = {}  # saved outputs are pictures and tables: no widget code from a CDN

default_role = "obj"  # in docstrings, a name in backticks is code, and a link where it is known
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_rtype = False
add_module_names = False

html_theme = "furo"
html_title = "Gradient Workbench"
html_static_path = ["_static"]
html_css_files = ["workbench.css"]
html_copy_source = False
html_show_sphinx = False


def _hide_signature(_app: Sphinx, kind: str, _name: str, value: Any, *_rest: Any) -> Any:
    """Hide the constructor of a record, which users are given; its fields are listed below it."""
    return ("", None) if kind == "class" and dataclasses.is_dataclass(value) else None


def setup(app: Sphinx) -> None:
    """Highlight Python cells with their magics."""
    app.add_lexer("python", IPython3Lexer)
    app.connect("autodoc-process-signature", _hide_signature)
