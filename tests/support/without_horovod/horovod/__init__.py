"""Hides the installed Horovod, as if there were none."""

raise ModuleNotFoundError("No module named 'horovod'", name="horovod")
