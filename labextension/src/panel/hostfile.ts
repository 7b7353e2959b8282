import { IDocumentManager } from '@jupyterlab/docmanager';
import { ITranslator, TranslationBundle } from '@jupyterlab/translation';

/** Let the user choose a host file on the server: its path there, or `null`. */
export async function chooseHostFile(
  documents: IDocumentManager,
  trans: TranslationBundle,
  translator: ITranslator | null
): Promise<string | null> {
  const { FileDialog } = await import('@jupyterlab/filebrowser');
  const { button, value } = await FileDialog.getOpenFiles({
    manager: documents,
    title: trans.__('Choose a host file'),
    translator: translator ?? undefined
  });
  const file = value?.find(one => one.type !== 'directory');
  return button.accept && file
    ? documents.services.contents.localPath(file.path)
    : null;
}
