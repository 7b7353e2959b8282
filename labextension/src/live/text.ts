/**
 * The view's words. An entry point that has a translator hands it over; the view knows
 * only this shape of it (that of JupyterLab's `TranslationBundle`).
 */

export interface ITranslate {
  __(text: string, ...values: (string | number)[]): string;
}

/** English as written in the source: for front ends without a translator. */
export const ENGLISH: ITranslate = {
  __: (text, ...values) =>
    text.replace(/%(\d)/g, (_, place) =>
      String(values[Number(place) - 1] ?? '')
    )
};
