/** A file of a recorded run, which the server extension sends. */
export interface IRunFile {
  run: string;
  file: string;
}
