import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { ServerConnection } from '@jupyterlab/services';

import { ENGLISH } from '../src/common/translate';
import { FILE_MIME_TYPE, FileLink } from '../src/files/renderer';

const HUB = 'http://localhost/user/ada/';

async function render(data: unknown): Promise<HTMLElement> {
  const settings = ServerConnection.makeSettings({ baseUrl: HUB });
  const link = new FileLink(settings, ENGLISH);
  const model = { data: { [FILE_MIME_TYPE]: data } };
  await link.renderModel(model as unknown as IRenderMime.IMimeModel);
  return link.node;
}

describe('the link to a file of a run', () => {
  it('downloads it from the server of the settings, whatever its base URL', async () => {
    const node = await render({ run: 'a b', file: 'evidence-now.zip' });
    const link = node.querySelector('a')!;
    expect(link.href).toBe(
      `${HUB}workbench/api/runs/a%20b/files/evidence-now.zip`
    );
    expect(link.download).toBe('evidence-now.zip');
    expect(node.textContent).toBe('Download evidence-now.zip');
  });

  it.each([
    [{ run: '..', file: 'x' }],
    [{ run: 'x', file: '..' }],
    [{ run: 1, file: 'x' }],
    [{}],
    [null]
  ])('does not follow %j', async data => {
    const node = await render(data);
    expect(node.querySelector('a')).toBeNull();
    expect(node.textContent).toBe('This output names no file.');
  });

  it('shows names as text and leaves no route', async () => {
    const node = await render({
      run: '../../x',
      file: '<b>',
      text: '<i>hello</i>'
    });
    expect(node.querySelector('b, i')).toBeNull();
    expect(node.querySelector('pre')!.textContent).toBe('<i>hello</i>');
    expect(node.querySelector('a')!.href).toBe(
      `${HUB}workbench/api/runs/..%2F..%2Fx/files/%3Cb%3E`
    );
  });
});
