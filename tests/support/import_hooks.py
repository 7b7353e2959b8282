"""Changes a module in other processes, right after they have imported it."""

_HOOK = """
from workbench.rank.after_import import after_import

after_import({module!r}, change)
"""


def after_import(module: str, source: str) -> str:
    """Return the text of a ``sitecustomize.py`` that changes a module.

    Parameters
    ----------
    module
        The name of the module.
    source
        Code that defines ``change(module)``, which is called when the module is imported.
    """
    return source + _HOOK.format(module=module)
