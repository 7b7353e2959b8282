import { checkIcon, copyIcon } from '@jupyterlab/ui-components';
import React, { useEffect, useState } from 'react';

const SHOWN_MS = 2000;

/** Copies a text, and shows briefly that it did, also to a screen reader. */
export function CopyButton(props: CopyButton.IProps): JSX.Element {
  const [state, setState] = useState<'rests' | 'done' | 'failed'>('rests');
  useEffect(() => {
    const timer = setTimeout(() => setState('rests'), SHOWN_MS);
    return () => clearTimeout(timer);
  }, [state]);
  const icon = state === 'done' ? checkIcon : copyIcon;
  return (
    <>
      <button
        type="button"
        className="jp-gw-Copy"
        title={props.label}
        aria-label={props.label}
        onClick={() =>
          void copyText(props.text).then(done =>
            setState(done ? 'done' : 'failed')
          )
        }
      >
        <icon.react tag="span" aria-hidden="true" />
      </button>
      <span className="jp-gw-Copy-word" role="status">
        {state === 'rests' ? '' : props[state]}
      </span>
    </>
  );
}

export namespace CopyButton {
  export interface IProps {
    text: string;
    /** The text to copy. */
    label: string;
    /** Labels for success and failure. */
    done: string;
    failed: string;
  }
}

/** Copy a text and return whether that worked; a page without TLS needs the old API. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text: string): boolean {
  const focused = document.activeElement as HTMLElement | null;
  const area = document.createElement('textarea');
  area.value = text;
  document.body.append(area);
  area.select();
  try {
    return document.execCommand('copy');
  } catch {
    return false;
  } finally {
    area.remove();
    focused?.focus();
  }
}
