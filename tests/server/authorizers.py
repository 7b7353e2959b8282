"""An authoriser that refuses what a file names."""

from __future__ import annotations

import os
from pathlib import Path

from jupyter_server.auth import Authorizer


class Refusing(Authorizer):
    """Refuses each ``action resource`` that is a line of the file ``$REFUSED``."""

    def is_authorized(self, handler, user, action, resource):
        return f"{action} {resource}" not in Path(os.environ["REFUSED"]).read_text().splitlines()
