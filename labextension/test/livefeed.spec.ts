import { LiveFeed } from '../src/resources/livefeed';
import { ISample } from '../src/schema/sample';
import { sample } from './fixtures';

class Socket implements LiveFeed.ISocket {
  onmessage: ((event: MessageEvent) => void) | null = null;
  onclose: ((event: CloseEvent) => void) | null = null;
  closed = false;

  close(): void {
    this.closed = true;
  }

  say(data: unknown): void {
    this.onmessage?.({ data: JSON.stringify(data) } as MessageEvent);
  }

  breakDown(): void {
    this.onclose?.({} as CloseEvent);
  }
}

describe('LiveFeed', () => {
  let sockets: Socket[];
  let heard: ISample[];
  let feed: LiveFeed;

  const last = (): Socket => sockets[sockets.length - 1];

  beforeEach(() => {
    jest.useFakeTimers();
    sockets = [];
    heard = [];
    feed = new LiveFeed({
      connect: () => {
        sockets.push(new Socket());
        return last();
      }
    });
    feed.received.connect((_, one) => heard.push(one));
  });

  afterEach(() => {
    feed.dispose();
    jest.useRealTimers();
  });

  it('opens nothing before it is started', () => {
    jest.advanceTimersByTime(60_000);
    expect(sockets).toHaveLength(0);
    expect(feed.state.name).toBe('closed');
  });

  it('is live with the first message', () => {
    feed.start();
    expect(feed.state.name).toBe('connecting');
    last().say(sample(1));
    expect(feed.state.name).toBe('live');
    expect(heard[0].cpu.percent).toBe(37.4);
  });

  it('connects again after 1, 2 and 4 seconds, and after 1 again once it was live', () => {
    feed.start();
    for (const wait of [1000, 2000, 4000]) {
      const before = sockets.length;
      last().breakDown();
      jest.advanceTimersByTime(wait - 1);
      expect(sockets).toHaveLength(before);
      jest.advanceTimersByTime(1);
      expect(sockets).toHaveLength(before + 1);
    }
    last().say(sample(0));
    last().breakDown();
    expect(feed.state).toEqual({
      name: 'waiting',
      reason: 'the connection was closed'
    });
    jest.advanceTimersByTime(1000);
    expect(sockets).toHaveLength(5);
  });

  it('takes a silent connection for a broken one', () => {
    feed.start();
    last().say(sample(0));
    jest.advanceTimersByTime(5000);
    expect(feed.state).toEqual({
      name: 'waiting',
      reason: 'the server has sent nothing for 5 s'
    });
    expect(sockets[0].closed).toBe(true);
  });

  it('says which field of a message it cannot read, and shows nothing of it', () => {
    feed.start();
    last().say({ ...sample(0), cpu: {} });
    expect(heard).toEqual([]);
    expect(feed.state).toMatchObject({
      name: 'waiting',
      reason: expect.stringContaining('sample.cpu.percent')
    });
  });

  it('closes its socket when stopped, and opens a new one when started again', () => {
    feed.start();
    feed.stop();
    expect(last().closed).toBe(true);
    jest.advanceTimersByTime(60_000);
    expect(sockets).toHaveLength(1);
    feed.start();
    expect(sockets).toHaveLength(2);
  });

  it('can be disposed twice, and does not come back', () => {
    feed.start();
    feed.dispose();
    feed.dispose();
    feed.start();
    jest.advanceTimersByTime(60_000);
    expect(sockets).toHaveLength(1);
  });
});
