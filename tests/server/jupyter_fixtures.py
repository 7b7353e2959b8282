"""The fixtures of pytest_jupyter, for `import *` into the files that use them.

They are no plugin: those for the event loop are automatic, and belong to no other file's tests.
"""

import asyncio

import pytest
from pytest_jupyter.jupyter_server import *  # noqa: F403


@pytest.fixture(autouse=True)
def jp_asyncio_loop():
    """A new event loop, the current one.

    pytest_jupyter's own may be one that an earlier test has left open, which is not current.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    asyncio.set_event_loop(None)
    loop.close()
