import { TimingFeed } from '../../src/live/feed';
import { message, rows, snapshot } from './rows';

describe('TimingFeed', () => {
  let feed: TimingFeed;
  let changes: number;

  beforeEach(() => {
    feed = new TimingFeed();
    changes = 0;
    feed.onChange(() => changes++);
  });

  it('waits, and knows nothing, until something comes', () => {
    expect(feed.status.state).toBe('waiting');
    expect(feed.status.summary.busbw_gbps).toEqual({
      unknown: 'no iteration has arrived yet'
    });
  });

  it('appends deltas to a window', () => {
    feed.handleMessage(...message('window', 1, rows(0, 10)));
    feed.handleMessage(...message('delta', 2, rows(10, 12)));
    expect([feed.store.first, feed.store.last]).toEqual([0, 11]);
    expect(changes).toBe(2);
  });

  it('lets rows be after a gap until a window comes', () => {
    feed.handleMessage(...message('window', 1, rows(0, 10)));
    feed.handleMessage(...message('delta', 3, rows(12, 14)));
    expect(feed.gap).toBe(true);
    expect(feed.store.last).toBe(9);
    feed.handleMessage(...message('delta', 4, rows(14, 15)));
    expect(feed.store.last).toBe(9);
    feed.handleMessage(...message('window', 5, rows(2, 16)));
    expect(feed.gap).toBe(false);
    expect([feed.store.first, feed.store.last]).toEqual([0, 15]);
  });

  it('takes the figures and the state from a message after a gap', () => {
    feed.handleMessage(...message('window', 1, rows(0, 10)));
    feed.handleMessage(...message('state', 9, [], { state: 'ended' }));
    expect(feed.status.state).toBe('ended');
  });

  it('goes on from a snapshot', () => {
    feed.loadSnapshot(snapshot(4, rows(0, 3)));
    feed.handleMessage(...message('delta', 5, rows(3, 4)));
    expect(feed.store.last).toBe(3);
  });

  it('is not turned back by an older snapshot', () => {
    feed.handleMessage(...message('window', 7, rows(0, 10)));
    feed.loadSnapshot(snapshot(3, rows(0, 2), { state: 'waiting' }));
    expect(feed.status.state).toBe('running');
    expect(feed.store.last).toBe(9);
    expect(changes).toBe(1);
  });

  it('drops the iterations of an earlier run', () => {
    feed.handleMessage(...message('window', 1, rows(0, 50)));
    feed.handleMessage(...message('window', 2, rows(0, 3), { run: 1 }));
    expect([feed.store.first, feed.store.last]).toEqual([0, 2]);
  });

  it('hands the bundle to save back, and changes nothing', () => {
    const data = { 'text/plain': 'Timings' };
    expect(feed.handleMessage({ type: 'saved', data }, [])).toBe(data);
    expect(changes).toBe(0);
  });

  it('lets messages of kinds that it does not know pass', () => {
    expect(feed.handleMessage({ type: 'of tomorrow' }, [])).toBeNull();
    expect(changes).toBe(0);
  });

  it('says what to do about rows that are cut short', () => {
    const [content] = message('window', 1, rows(0, 10));
    expect(() =>
      feed.handleMessage(content, [new DataView(new ArrayBuffer(8))])
    ).toThrow(/22 columns of 20 rows need 1760 bytes, but 8 arrived/);
  });

  it('says what to do about a snapshot of another version', () => {
    expect(() => feed.loadSnapshot({ version: 1 })).toThrow(
      /version 1.*version 2/
    );
  });
});
