import React, { useId } from 'react';

import { Machine } from './machine';
import { SectionName } from './preferences';
import { useOpening, useShared } from './shared';

/** A section of a card, with a heading that opens and closes it. */
export function Section(props: Section.IProps): JSX.Element {
  const { detail, machine, more, name, title } = props;
  const { preferences } = useShared();
  const [open, setOpen] = useOpening(
    `${machine.key}/${name}`,
    preferences.openSections[name]
  );
  const id = useId();
  return (
    <section className="jp-gw-Section">
      <div className="jp-gw-Section-head">
        <h5>
          <button
            type="button"
            className="jp-gw-Section-button"
            aria-expanded={open}
            aria-controls={id}
            onClick={() => setOpen(!open)}
          >
            {title}
          </button>
        </h5>
        <span className="jp-gw-Section-detail" title={detail}>
          {detail}
        </span>
        {open && more && (
          <button
            type="button"
            className="jp-gw-Section-more"
            aria-pressed={more.shown}
            onClick={() => more.show(!more.shown)}
          >
            {more.label}
          </button>
        )}
      </div>
      <div id={id} className="jp-gw-Section-body" hidden={!open}>
        {open && props.children}
      </div>
    </section>
  );
}

export namespace Section {
  export interface IProps {
    machine: Machine;
    name: SectionName;
    title: string;
    /** What a closed section still shows. */
    detail?: string;
    /** A switch for additional figures. */
    more?: { label: string; shown: boolean; show: (shown: boolean) => void };
    children: React.ReactNode;
  }
}
