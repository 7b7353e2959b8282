/**
 * Small helpers to build the view's elements.
 */

import { DASH } from './format';

/** Create an element with a class and text or children. */
export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className: string,
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  if (className) {
    node.className = className;
  }
  node.append(...children);
  return node;
}

/** Set text only if it differs, so that a constant figure costs nothing. */
export function setText(node: HTMLElement, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

/**
 * Prevent JupyterLab's shortcuts for keys pressed in an element: they are handled
 * first, and arrows would move to another cell.
 */
export function keepKeys(node: HTMLElement): void {
  node.dataset.lmSuppressShortcuts = 'true';
}

/**
 * The place of a figure. An unknown figure is a grey dash whose reason is shown on
 * hover and on focus.
 */
export class FigureSpan {
  constructor(className = '') {
    this._value = element('span', 'jp-gw-Live-value');
    this._unit = element('span', 'jp-gw-Live-unit');
    this.node = element(
      'span',
      `jp-gw-Live-figure ${className}`,
      this._value,
      this._unit
    );
  }

  readonly node: HTMLSpanElement;

  /** Show a figure and its unit. */
  show(value: string, unit = ''): void {
    setText(this._value, value);
    setText(this._unit, unit ? ` ${unit}` : '');
    this.node.classList.remove('jp-gw-Live-unknown');
    for (const name of ['tabindex', 'role', 'aria-label', 'data-reason']) {
      this.node.removeAttribute(name);
    }
  }

  /** Show that the figure is unknown, and why. */
  unknown(reason: string): void {
    if (this.node.getAttribute('data-reason') === reason) {
      return;
    }
    setText(this._value, DASH);
    setText(this._unit, '');
    this.node.classList.add('jp-gw-Live-unknown');
    this.node.tabIndex = 0;
    this.node.setAttribute('role', 'note');
    this.node.setAttribute('aria-label', reason);
    this.node.setAttribute('data-reason', reason);
  }

  private _value: HTMLSpanElement;
  private _unit: HTMLSpanElement;
}

/** A square in a phase's colour with its darker edge, optionally hatched. */
export function swatch(
  color: string,
  edge: string,
  hatched: boolean
): HTMLSpanElement {
  const node = element('span', 'jp-gw-Live-swatch');
  node.setAttribute('aria-hidden', 'true');
  node.style.borderColor = edge;
  node.style.background = hatched
    ? `repeating-linear-gradient(135deg, ${color} 0 2px, transparent 2px 4px)`
    : color;
  return node;
}
