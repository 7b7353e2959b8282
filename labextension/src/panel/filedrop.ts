import { IDisposable } from '@lumino/disposable';

const MARK = 'jp-gw-mod-drop';

/** Accepts files dropped on a node, and marks the node during the drag. */
export class FileDrop implements IDisposable {
  constructor(
    private _node: HTMLElement,
    private _take: (file: File) => void
  ) {
    for (const type of Private.TYPES) {
      _node.addEventListener(type, this);
    }
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    for (const type of Private.TYPES) {
      this._node.removeEventListener(type, this);
    }
  }

  handleEvent(event: DragEvent): void {
    if (!event.dataTransfer?.types.includes('Files')) {
      return;
    }
    // Otherwise the browser would leave Lab and show the file.
    event.preventDefault();
    if (event.type === 'dragleave') {
      const within = this._node.contains(event.relatedTarget as Node | null);
      this._node.classList.toggle(MARK, within);
      return;
    }
    this._node.classList.toggle(MARK, event.type === 'dragover');
    if (event.type === 'drop') {
      for (const file of event.dataTransfer.files) {
        this._take(file);
      }
    } else {
      event.dataTransfer.dropEffect = 'copy';
    }
  }

  private _isDisposed = false;
}

/** Let the user choose files; none if the user cancels. */
export function chooseFiles(): Promise<File[]> {
  const input = document.createElement('input');
  input.type = 'file';
  input.multiple = true;
  input.accept = '.xml,.json,.txt,.gwsession';
  return new Promise(resolve => {
    input.onchange = () => resolve([...(input.files ?? [])]);
    input.oncancel = () => resolve([]);
    input.click();
  });
}

namespace Private {
  export const TYPES = ['dragover', 'dragleave', 'drop'] as const;
}
