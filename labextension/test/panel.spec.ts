import { DEFAULTS } from '../src/resources/preferences';
import { FileDrop } from '../src/panel/filedrop';
import { preferencesOf } from '../src/panel/settings';
import schema from '../schema/panel.json';

describe('the settings', () => {
  it('have the defaults of the schema where nobody changed them', () => {
    const defaults = Object.fromEntries(
      Object.entries(schema.properties).map(([name, one]) => [
        name,
        one.default
      ])
    );
    expect(defaults).toEqual(DEFAULTS);
    expect(preferencesOf({})).toEqual(DEFAULTS);
    expect(preferencesOf({ rates: 'bytes' }).rates).toBe('bytes');
  });
});

describe('a file that is dragged over the panel', () => {
  let node: HTMLElement;
  let taken: File[];
  let drop: FileDrop;

  const drag = (type: string, types: string[], files: File[] = []): Event => {
    const event = new Event(type, { bubbles: true, cancelable: true });
    Object.assign(event, { dataTransfer: { types, files } });
    node.dispatchEvent(event);
    return event;
  };

  beforeEach(() => {
    node = document.createElement('div');
    taken = [];
    drop = new FileDrop(node, file => taken.push(file));
  });

  it('is shown where it would fall, and taken where it falls', () => {
    drag('dragover', ['Files']);
    expect(node.classList.contains('jp-gw-mod-drop')).toBe(true);
    const file = new File(['<system/>'], 'topo.xml');
    const event = drag('drop', ['Files'], [file]);
    expect(taken).toEqual([file]);
    expect(event.defaultPrevented).toBe(true);
    expect(node.classList.contains('jp-gw-mod-drop')).toBe(false);
  });

  it('is left alone where it is no file, and after the end of the panel', () => {
    expect(drag('drop', ['text/plain']).defaultPrevented).toBe(false);
    drop.dispose();
    expect(drag('dragover', ['Files']).defaultPrevented).toBe(false);
    expect(taken).toEqual([]);
  });
});
