/** Context shared by all components of the view. */
import { nullTranslator, TranslationBundle } from '@jupyterlab/translation';
import React, {
  createContext,
  useCallback,
  useEffect,
  useState,
  useSyncExternalStore
} from 'react';

import { Machine } from './machine';
import { Openings } from './openings';
import { DEFAULTS, IPreferences } from './preferences';

export interface IShared {
  readonly trans: TranslationBundle;
  readonly preferences: IPreferences;
  readonly openings: Openings;
}

export const Shared = createContext<IShared>({
  trans: nullTranslator.load(''),
  preferences: DEFAULTS,
  openings: new Openings(null)
});

export function useShared(): IShared {
  return React.useContext(Shared);
}

/** Redraw a component with each change of a machine while it is visible. */
export function useMachine(machine: Machine, seen: boolean): void {
  const subscribe = useCallback(
    (changed: () => void) => {
      if (seen) {
        machine.changed.connect(changed);
      }
      return () => {
        machine.changed.disconnect(changed);
      };
    },
    [machine, seen]
  );
  useSyncExternalStore(subscribe, () => machine.version);
}

/** Whether an element is in the visible area of the panel, or close to it. */
export function useSeen(element: React.RefObject<HTMLElement>): boolean {
  const [seen, setSeen] = useState(true);
  useEffect(() => {
    if (!element.current || typeof IntersectionObserver === 'undefined') {
      return;
    }
    const observer = new IntersectionObserver(
      changes => setSeen(changes[changes.length - 1].isIntersecting),
      { rootMargin: '200px' }
    );
    observer.observe(element.current);
    return () => observer.disconnect();
  }, [element]);
  return seen;
}

/** Whether something is open: as set by the user, or else `byItself`; and a setter. */
export function useOpening(
  name: string,
  byItself: boolean
): [boolean, (open: boolean) => void] {
  const { openings } = useShared();
  const subscribe = useCallback(
    (changed: () => void) => {
      openings.changed.connect(changed);
      return () => {
        openings.changed.disconnect(changed);
      };
    },
    [openings]
  );
  const chosen = useSyncExternalStore(subscribe, () => openings.get(name));
  return [chosen ?? byItself, open => openings.set(name, open)];
}
