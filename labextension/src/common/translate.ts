/**
 * Translation. The entry points pass JupyterLab's `TranslationBundle` on to every module
 * that has a text for users; they use only these methods of it.
 */

export interface ITranslate {
  __(text: string, ...values: (string | number)[]): string;
}

/** The English source text, for front ends without a translator. */
export const ENGLISH: ITranslate = {
  __: (text, ...values) =>
    text.replace(/%(\d)/g, (_, place) =>
      String(values[Number(place) - 1] ?? '')
    )
};
