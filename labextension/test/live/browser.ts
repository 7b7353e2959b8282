/* eslint-disable @typescript-eslint/no-explicit-any -- fakes are parts of what they stand for */
/**
 * What jsdom lacks of a browser: a canvas that takes every stroke, observers
 * that a test fires, animation frames that a test runs.
 */

type Callback = () => void;

export interface IBrowser {
  /** Texts drawn on any canvas since the last `frame`. */
  texts: string[];
  /** Run the animation frames that were asked for; how many there were. */
  frame(): number;
  /** Give elements a width and tell those who watch it. */
  resize(width: number): void;
  /** Scroll the views into sight or out of it. */
  show(visible: boolean): void;
}

export function installBrowser(): IBrowser {
  const texts: string[] = [];
  const frames: Callback[] = [];
  const sizes = new Set<Callback>();
  const sights = new Set<(entries: { isIntersecting: boolean }[]) => void>();
  let width = 900;

  const strokes: ProxyHandler<Record<string, unknown>> = {
    get: (target, name: string) => {
      if (name in target) {
        return target[name];
      }
      switch (name) {
        case 'fillText':
          return (text: string) => texts.push(text);
        case 'measureText':
          return (text: string) => ({ width: 6 * text.length });
        case 'createImageData':
          return (w: number, h: number) => ({
            data: new Uint8ClampedArray(4 * w * h)
          });
        case 'getImageData':
          return () => ({ data: new Uint8ClampedArray([30, 30, 30, 255]) });
        default:
          return () => null;
      }
    },
    set: (target, name: string, value) => {
      target[name] = value;
      return true;
    }
  };
  const anyWindow = window as any;
  HTMLCanvasElement.prototype.getContext = (() =>
    new Proxy({}, strokes)) as any;
  anyWindow.Path2D = class {
    rect(): void {}
    moveTo(): void {}
    lineTo(): void {}
    closePath(): void {}
    arc(): void {}
    addPath(): void {}
    bezierCurveTo(): void {}
  };
  anyWindow.matchMedia = () => ({
    matches: false,
    addEventListener: () => undefined,
    removeEventListener: () => undefined
  });
  anyWindow.requestAnimationFrame = (callback: Callback) =>
    frames.push(callback);
  anyWindow.cancelAnimationFrame = (id: number) => {
    frames[id - 1] = () => undefined;
  };
  anyWindow.ResizeObserver = class {
    constructor(private _callback: Callback) {}
    observe(): void {
      sizes.add(this._callback);
    }
    disconnect(): void {
      sizes.delete(this._callback);
    }
  };
  anyWindow.IntersectionObserver = class {
    constructor(private _callback: (entries: any[]) => void) {}
    observe(): void {
      sights.add(this._callback);
    }
    disconnect(): void {
      sights.delete(this._callback);
    }
  };
  Object.defineProperty(HTMLElement.prototype, 'clientWidth', {
    configurable: true,
    get: () => width
  });
  return {
    texts,
    frame: () => {
      texts.length = 0;
      const due = frames.splice(0);
      due.forEach(callback => callback());
      return due.length;
    },
    resize: to => {
      width = to;
      sizes.forEach(callback => callback());
    },
    show: visible => {
      sights.forEach(callback => callback([{ isIntersecting: visible }]));
    }
  };
}
