import { PromiseDelegate } from '@lumino/coreutils';

/** One request to the kernel at a time, whose answer all get who wait for it. */
export class SharedWait {
  /** The answer to the request, which is sent unless one is on its way. */
  ask(send: () => Promise<void>): Promise<unknown> {
    if (!this._wait) {
      const wait = (this._wait = new PromiseDelegate<unknown>());
      send().catch((error: Error) => {
        wait.reject(error);
        this._wait = this._wait === wait ? null : this._wait;
      });
    }
    return this._wait.promise;
  }

  resolve(answer: unknown): void {
    this._wait?.resolve(answer);
    this._wait = null;
  }

  reject(reason: string): void {
    this._wait?.reject(new Error(reason));
    this._wait = null;
  }

  private _wait: PromiseDelegate<unknown> | null = null;
}
