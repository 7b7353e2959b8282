import React, { RefObject, useCallback, useMemo, useState } from 'react';

import { IDrawing } from './drawing';
import { Lit, litBy, partners, Pointed } from './paths';
import { stepTo } from './steps';

/** The device selected by mouse, keyboard or click. */
export interface IPointer {
  /** The device to describe: under the mouse, else focused, else pinned. */
  readonly shown: string | null;
  /** The device that was clicked and stays selected. */
  readonly pinned: string | null;
  /** The only device that the tab key reaches; arrow keys reach the others. */
  readonly inTabOrder: string | undefined;
  /** What is highlighted; `null` for nothing. */
  readonly lit: Lit | null;
  readonly onHover: (id: string | null) => void;
  readonly onHoverRank: (rank: number | null) => void;
  readonly onFocus: (id: string | null) => void;
  readonly onToggle: (id: string) => void;
  readonly onKeyDown: (event: React.KeyboardEvent) => void;
}

/** A device by its position in the snapshot's `gpus` or `nics`. */
export interface ISelected {
  readonly kind: 'gpu' | 'nic';
  readonly position: number;
}

/** `onSelect` is called when a device is pinned, or with `null` when it is released. */
export function usePointer(
  drawing: IDrawing,
  root: RefObject<HTMLElement>,
  onSelect?: (device: ISelected | null) => void
): IPointer {
  const { graph } = drawing;
  const [hovered, onHover] = useState<string | null>(null);
  const [hoveredRank, onHoverRank] = useState<number | null>(null);
  const [focused, setFocused] = useState<string | null>(null);
  const [pinned, setPinned] = useState<string | null>(null);
  const [active, setActive] = useState('');
  const shown = hovered ?? focused ?? pinned;
  const lit = useMemo(
    () => Private.lit(drawing, hoveredRank, shown),
    [drawing, hoveredRank, shown]
  );
  const pin = useCallback(
    (id: string | null) => {
      setPinned(id);
      onSelect?.(Private.selected(id, drawing));
    },
    [drawing, onSelect]
  );
  const onToggle = useCallback(
    (id: string) => pin(pinned === id ? null : id),
    [pin, pinned]
  );
  const onFocus = useCallback((id: string | null) => {
    setFocused(id);
    if (id !== null) {
      setActive(id);
    }
  }, []);
  const inTabOrder = graph.devices.some(one => one.id === active)
    ? active
    : graph.devices[0]?.id;
  const onKeyDown = (event: React.KeyboardEvent): void => {
    const isFocused = graph.devices.some(one => one.id === focused);
    if (event.key === 'Escape' && (isFocused || pinned !== null)) {
      event.stopPropagation();
      pin(null);
      root.current?.focus();
    } else {
      Private.moveFocus(event, focused, drawing, root.current);
    }
  };
  return { shown, pinned, inTabOrder, lit, onHover, onHoverRank, onFocus, onToggle, onKeyDown }; // prettier-ignore
}

namespace Private {
  export function selected(
    id: string | null,
    { graph }: IDrawing
  ): ISelected | null {
    const device = graph.devices.find(one => one.id === id);
    return device?.kind === 'gpu' || device?.kind === 'nic'
      ? { kind: device.kind, position: device.position }
      : null;
  }

  export function lit(
    { graph, layout, ranks, verdicts }: IDrawing,
    rank: number | null,
    device: string | null
  ): Lit | null {
    const pointed: Pointed | null =
      rank !== null
        ? { kind: 'rank', rank }
        : device !== null
          ? { kind: 'device', id: device }
          : null;
    return pointed && litBy(pointed, graph, layout, ranks, verdicts);
  }

  /** Move the focus from the focused device in the direction of a key. */
  export function moveFocus(
    event: React.KeyboardEvent,
    focused: string | null,
    { graph, layout, ranks, verdicts }: IDrawing,
    root: HTMLElement | null
  ): void {
    const from = graph.devices.find(one => one.id === focused);
    const to =
      from &&
      stepTo(event.key, from.id, layout.rows, graph, () =>
        partners(from, graph, ranks, verdicts)
      );
    if (to) {
      event.preventDefault();
      root
        ?.querySelector<HTMLElement>(`[data-id="${to}"]`)
        ?.focus({ preventScroll: false });
    }
  }
}
