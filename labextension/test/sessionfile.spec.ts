import { FileShelf } from '../src/resources/files';

describe('a recorded session that is opened in the panel', () => {
  const client: FileShelf.IClient = {
    read: async () => {
      throw new Error('the server was asked');
    }
  };
  const open = async (
    name: string,
    notebook: string
  ): Promise<{ cells: string[]; error: unknown }> => {
    const cells: string[] = [];
    const shelf = new FileShelf({
      client,
      cluster: {
        notebook,
        insertCell: async source => {
          cells.push(source);
        }
      }
    });
    await shelf.open(new File(['PK'], name));
    return { cells, error: shelf.failure?.error };
  };

  it('becomes a cell that replays it', async () => {
    const { cells, error } = await open('two vms.gwsession', 'train.ipynb');
    expect(cells).toEqual([
      '%reload_ext workbench\n%timings replay "two vms.gwsession"'
    ]);
    expect(error).toEqual(new FileShelf.Session(true));
    const plain = await open('hgx-8gpu.gwsession', 'train.ipynb');
    expect(plain.cells[0]).toContain('replay hgx-8gpu.gwsession');
  });

  it('needs a notebook', async () => {
    const { cells, error } = await open('a.gwsession', '');
    expect(cells).toEqual([]);
    expect(error).toBeInstanceOf(FileShelf.Session);
    expect((error as FileShelf.Session).hasCell).toBe(false);
  });
});
