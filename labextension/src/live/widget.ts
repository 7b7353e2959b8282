/**
 * The entry point for other front ends: an anywidget (https://anywidget.dev).
 */

import { TimingFeed } from './feed';
import { Request } from './protocol';
import { LiveView } from './view';

/** Called for a change without arguments, or for a message with content and buffers. */
type Callback = (content: unknown, buffers: DataView[]) => void;

/** The interface of anywidget's model that is used here. */
export interface IWidgetModel {
  get(name: 'snapshot'): unknown;
  send(content: Request): void;
  on(event: string, callback: Callback): void;
  off(event: string, callback: Callback): void;
}

/** The argument of `render`. */
export interface IRenderContext {
  model: IWidgetModel;
  el: HTMLElement;
}

/**
 * Anywidget's factory. Each view has its own timings: a widget that is never shown
 * costs nothing, and each view starts from the snapshot.
 */
export default function factory(): {
  initialize: () => void;
  render: (context: IRenderContext) => () => void;
} {
  return { initialize: () => undefined, render };
}

function render({ model, el }: IRenderContext): () => void {
  const feed = new TimingFeed();
  const loadSnapshot = (): void => {
    const snapshot = model.get('snapshot') as { version?: number } | undefined;
    if (snapshot?.version !== undefined) {
      feed.loadSnapshot(snapshot);
    }
  };
  const onMessage = (content: unknown, buffers: DataView[]): void => {
    feed.handleMessage(content, buffers ?? []);
  };
  loadSnapshot();
  feed.connect(request => model.send(request));
  model.on('change:snapshot', loadSnapshot);
  model.on('msg:custom', onMessage);
  const view = new LiveView({ host: el, feed });
  return () => {
    model.off('change:snapshot', loadSnapshot);
    model.off('msg:custom', onMessage);
    view.dispose();
  };
}
