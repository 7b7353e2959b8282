"""How readable text is: its contrast with what lies behind it, as the browser computes both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timers import within

if TYPE_CHECKING:
    from playwright.sync_api import Locator

READABLE = 4.5
"""The least contrast of text, WCAG 2.1, success criterion 1.4.3."""

# Paints the backgrounds of an element's ancestors over each other, then its text's
# colour on top, and reads both back: so every notation of a colour and every
# transparency is computed by the browser itself.
_MEASURE = """
element => {
  const canvas = new OffscreenCanvas(1, 1);
  const paint = canvas.getContext('2d', { willReadFrequently: true });
  const chain = [];
  for (let node = element; node; node = node.parentElement) {
    chain.unshift(getComputedStyle(node));
  }
  const fill = (color, alpha) => {
    paint.globalAlpha = alpha;
    paint.fillStyle = color;
    paint.fillRect(0, 0, 1, 1);
  };
  const luminance = () => {
    const linear = Array.from(paint.getImageData(0, 0, 1, 1).data.slice(0, 3), byte => {
      const share = byte / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  fill('white', 1);
  let alpha = 1;
  for (const style of chain) {
    alpha *= Number(style.opacity);
    fill(style.backgroundColor, alpha);
  }
  const behind = luminance();
  fill(chain[chain.length - 1].color, alpha);
  const text = luminance();
  return (Math.max(behind, text) + 0.05) / (Math.min(behind, text) + 0.05);
}
"""


def contrast(text: Locator) -> float:
    """The contrast ratio of a text that is seen: 1 (none) to 21 (black on white).

    A theme that was just chosen is not applied at once: a text has time to become readable.
    The formula is that of WCAG 2.1, "contrast ratio".
    """
    ratios: list[float] = []

    def readable() -> bool:
        ratios.append(text.evaluate(_MEASURE))
        return ratios[-1] >= READABLE

    within(30, readable)
    return ratios[-1]
