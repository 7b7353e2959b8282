import React from 'react';

import { isUnknown, Known, orElse } from '../schema/known';
import { IEdge, ILayout } from './layout';
import { highlight, Lit } from './paths';
import { WeakestEdge } from './weakest';

/** Loads are drawn in this number of steps, so that a small change redraws nothing. */
const STEPS = 32;

/** `null` if the load is unknown. */
export type Step = number | null;

export function stepOf(share: Known<number>): Step {
  if (isUnknown(share)) {
    return null;
  }
  return share === 0 ? 0 : Math.max(1, Math.round(share * STEPS));
}

/** All edges; the boxes' texts are drawn above them. */
export function Edges(props: {
  layout: ILayout;
  steps: ReadonlyMap<string, Step>;
  lit: Lit | null;
  /** The edges of the ring's weakest hop. */
  weakest: readonly IEdge[];
  /** That hop in words. */
  hop: string;
}): JSX.Element {
  const { hop, layout, lit, steps, weakest } = props;
  const width = Math.ceil(layout.width);
  const height = Math.ceil(layout.height);
  return (
    <svg
      className="jp-gw-Topology-edges"
      width={width}
      height={height}
      viewBox={`0 0 ${width} ${height}`}
      aria-hidden="true"
    >
      {layout.crossings.map(one => (
        <path
          key={one.id}
          className={`jp-gw-Edge-crossing ${highlight(lit, one.id)}`}
          d={one.path}
        />
      ))}
      {weakest.map(edge => (
        <WeakestEdge key={edge.id} edge={edge} title={hop} />
      ))}
      {layout.edges.map(edge => (
        <Edge
          key={edge.id}
          edge={edge}
          step={steps.get(edge.id) ?? null}
          mod={highlight(lit, edge.id)}
        />
      ))}
    </svg>
  );
}

/**
 * One edge. If its load is measured, it is a pipe that is empty when idle and filled by
 * load; otherwise a plain line.
 */
export const Edge = React.memo(
  (props: { edge: IEdge; step: Step; mod: string }): JSX.Element => {
    const { edge, step, mod } = props;
    const wide = Private.width(edge);
    const [x, y] = edge.path.split('L').pop()!.split(',');
    return (
      <g className={`jp-gw-Edge jp-gw-mod-${edge.kind} ${mod}`}>
        {step === null ? (
          <path className="jp-gw-Edge-line" d={edge.path} />
        ) : (
          <>
            <path
              className="jp-gw-Edge-pipe"
              d={edge.path}
              strokeWidth={wide}
            />
            <path
              className="jp-gw-Edge-empty"
              d={edge.path}
              strokeWidth={wide - 2}
            />
            {step > 0 && (
              <path
                className="jp-gw-Edge-load"
                d={edge.path}
                strokeWidth={Math.max(1.25, ((wide - 2) * step) / STEPS)}
              />
            )}
          </>
        )}
        {edge.kind === 'network' && (
          <circle className="jp-gw-Edge-port" cx={x} cy={y} r={3.5} />
        )}
      </g>
    );
  }
);

namespace Private {
  /** The thickness of an NVLink grows with the number of links. */
  export function width(edge: IEdge): number {
    return edge.kind === 'nvlink'
      ? 7 + Math.min(1, orElse(edge.links ?? 0, 0) / 18) * 4
      : 6;
  }
}
