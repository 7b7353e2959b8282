"""Link the names in backticks of docstrings that leave the package or module out.

``frame.collectives`` and ``Run`` lead to the only documented name that ends so. Names without a
dot or a capital are parameters and attributes, and stay without a link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sphinx.util.nodes import make_refnode

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment


def _find(
    app: Sphinx, env: BuildEnvironment, node: nodes.Element, text: nodes.Element
) -> nodes.Element | None:
    target = str(node.get("reftarget", ""))
    if node.get("refdomain") != "py" or not ("." in target or target[:1].isupper()):
        return None
    objects: dict[str, Any] = env.domaindata["py"]["objects"]
    found = [name for name in objects if name.endswith(f".{target}") and not objects[name].aliased]
    if len(found) != 1:
        return None
    entry = objects[found[0]]
    here = str(node["refdoc"])
    return make_refnode(app.builder, here, entry.docname, entry.node_id, text, found[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("missing-reference", _find)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
