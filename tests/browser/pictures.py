"""Pictures of what the tests have seen, for people to judge: `make pictures`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Locator, Page

    from .pages import Lab

THEMES_OF_PICTURES = ("JupyterLab Light", "JupyterLab Dark")
WIDTHS = (1280, 1920)


class Pictures:
    """Writes pictures into a folder; without one, no picture is taken.

    Parameters
    ----------
    folder
        It is created where it does not exist.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def take(self, node: Page | Locator, name: str) -> None:
        """Write what is seen of a node, or of a page."""
        if self._folder is not None:
            node.screenshot(path=self._folder / f"{name}.png")

    def looks(self, lab: Lab) -> Iterator[str]:
        """Give the page every theme and width in turn, and yield a word for each; then restore it.

        It does nothing if no pictures are taken.
        """
        if self._folder is None:
            return
        for theme in THEMES_OF_PICTURES:
            lab.set_theme(theme)
            for width in WIDTHS:
                lab.page.set_viewport_size({"width": width, "height": 900})
                yield f"{theme.split()[-1].lower()}-{width}"
        lab.set_theme(THEMES_OF_PICTURES[0])
        lab.page.set_viewport_size({"width": WIDTHS[0], "height": 900})

    def take_all(self, lab: Lab, name: str) -> None:
        """Write the page in every theme and width."""
        for look in self.looks(lab):
            self.take(lab.page, f"{name}-{look}")
