/**
 * The pattern that distinguishes overlapped communication from exposed without colour.
 */

import { ITheme } from './theme';

/** A pattern of diagonal stripes, 6 pixels wide, on the theme's background. */
export function overlapPattern(
  ctx: CanvasRenderingContext2D,
  color: string,
  theme: ITheme
): CanvasPattern | string {
  const key = `${color} on ${theme.background}`;
  let pattern = Private.patterns.get(key);
  if (pattern === undefined) {
    pattern = Private.make(ctx, color, theme.background) ?? color;
    Private.patterns.set(key, pattern);
  }
  return pattern;
}

namespace Private {
  /** One per colour and theme: a pattern may be used in any canvas. */
  export const patterns = new Map<string, CanvasPattern | string>();

  export function make(
    ctx: CanvasRenderingContext2D,
    color: string,
    background: string
  ): CanvasPattern | null {
    const tile = document.createElement('canvas');
    tile.width = tile.height = 6;
    const pen = tile.getContext('2d');
    if (!pen) {
      return null;
    }
    pen.fillStyle = background;
    pen.fillRect(0, 0, 6, 6);
    pen.strokeStyle = color;
    pen.lineWidth = 2.4;
    pen.beginPath();
    for (const shift of [-6, 0, 6]) {
      pen.moveTo(shift - 1, 7);
      pen.lineTo(shift + 7, -1);
    }
    pen.stroke();
    return ctx.createPattern(tile, 'repeat');
  }
}
