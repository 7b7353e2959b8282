import { readKernelMessage } from '../src/schema/cluster';
import { readFindingsAnswer } from '../src/schema/findings';
import { readServerSample } from '../src/schema/sample';
import { readSnapshot } from '../src/schema/snapshot';
import { cluster, finding, sample, snapshot } from './fixtures';

describe('readSnapshot', () => {
  it('keeps what is known and why the rest is not', () => {
    const { gpus, nics } = readSnapshot(snapshot(2), 'snapshot');
    expect(gpus.map(gpu => gpu.index)).toEqual([0, 1]);
    expect(nics[0].rate_gbps).toEqual({
      unknown: 'the driver reports no speed'
    });
    expect(nics[1].rate_gbps).toBe(100);
  });

  it('names the field and what was found in it', () => {
    const wrong = snapshot(2);
    wrong.gpus[1].memory_bytes = 'much';
    expect(() => readSnapshot(wrong, 'snapshot')).toThrow(
      'snapshot.gpus[1].memory_bytes: expected a number, found "much"'
    );
  });

  it('reads a topology file that does not say whether there are GPUs', () => {
    const unclear = snapshot(0);
    unclear.probes.gpus = { status: 'unknown', reason: 'no class is given' };
    const { probes } = readSnapshot(unclear, 'snapshot');
    expect(probes.gpus.status).toBe('unknown');
  });

  it('takes no null for a value that is not known', () => {
    const wrong = snapshot(0);
    wrong.host.cpus = null;
    expect(() =>
      readSnapshot(
        { ...wrong, host: { ...wrong.host, cpus: null } },
        'snapshot'
      )
    ).toThrow('snapshot.host.cpus: expected a number, found null');
  });

  it('says what to do about a server of another version', () => {
    expect(() =>
      readSnapshot({ ...snapshot(0), version: 1 }, 'snapshot')
    ).toThrow(/version 1.*version 2.*Reload/);
  });
});

describe('readServerSample', () => {
  it('reads a server that sends no RDMA counters', () => {
    const eth0 = readServerSample(sample(0), 'sample').nics[1];
    expect(eth0.tx_bytes_per_s).toBe(1250);
    expect(eth0.rdma_tx_bytes_per_s).toHaveProperty('unknown');
  });
});

describe('readFindingsAnswer', () => {
  it('refuses a severity that has no colour and no word', () => {
    expect(
      readFindingsAnswer({ findings: [finding] }, 'answer').findings
    ).toEqual([finding]);
    expect(() =>
      readFindingsAnswer(
        { findings: [{ ...finding, severity: 'bad' }] },
        'answer'
      )
    ).toThrow(
      'answer.findings[0].severity: expected one of error, warning, info, found "bad"'
    );
  });
});

describe('readKernelMessage', () => {
  it('reads the three things that a kernel says', () => {
    expect(
      readKernelMessage({ type: 'state', cluster: null }, 'message')
    ).toEqual({
      type: 'state',
      cluster: null
    });
    expect(
      readKernelMessage({ type: 'state', cluster: cluster('ready') }, 'message')
    ).toHaveProperty('cluster.ranks.length', 2);
    expect(
      readKernelMessage({ type: 'error', message: 'no' }, 'message')
    ).toEqual({
      type: 'error',
      message: 'no',
      request: ''
    });
  });

  it('refuses a state that it has no word for', () => {
    expect(() =>
      readKernelMessage(
        { type: 'state', cluster: cluster('dreaming') },
        'message'
      )
    ).toThrow('message.cluster.state');
  });
});
