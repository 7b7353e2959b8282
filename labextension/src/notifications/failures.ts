import { KernelLink } from '../cluster/link';

/** What the user must know though the panel is hidden. */
export interface IFailure {
  readonly kind: 'cluster' | 'request';
  readonly text: string;
}

/**
 * Which changes of links are new failures. Each is reported once, until the cluster is
 * usable again or another request fails.
 */
export class Failures {
  /** Return the new failure of a link that has changed; `null` if there is none. */
  check(link: KernelLink): IFailure | null {
    const { cluster, error } = link.state;
    const failed = cluster?.state === 'failed';
    const text = failed
      ? cluster.message || `${cluster.name}: ${cluster.state}`
      : '';
    const before = this._known.get(link) ?? { isFailed: false, error: '' };
    this._known.set(link, { isFailed: failed, error });
    if (failed && !before.isFailed) {
      return { kind: 'cluster', text };
    }
    return error && error !== before.error
      ? { kind: 'request', text: error }
      : null;
  }

  private _known = new WeakMap<
    KernelLink,
    { isFailed: boolean; error: string }
  >();
}
