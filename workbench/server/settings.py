"""Settings of the server's configuration, for the kernels that it starts."""

from __future__ import annotations

import os

from traitlets import Bool
from traitlets.config import Configurable

from workbench.resources.use import VARIABLE


class GradientWorkbench(Configurable):
    """Settings in ``jupyter_server_config.py``, such as ``c.GradientWorkbench.record_use``."""

    record_use = Bool(
        True,
        help="Record how much of their allocated GPUs notebooks use, in a local database of the "
        "user (`workbench use`). False: its kernels write nothing.",
    ).tag(config=True)

    def apply(self) -> None:
        """Pass the settings to the kernels that this server starts, in environment variables."""
        if not self.record_use:
            os.environ[VARIABLE] = "off"
