"""Changes a module in other processes, right after they have imported it."""

_HOOK = """
import importlib.util, sys

class _Finder:
    def find_spec(self, name, path=None, target=None):
        if name != {module!r}:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            change(module)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, _Finder())
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
