import { validateMessage } from '../src/cluster/validate';
import { validateFindings, validateSnapshot } from '../src/resources/validate';
import { validateSample } from '../src/resources/validatesample';
import { cluster, finding, sample, snapshot } from './fixtures';

describe('validateSnapshot', () => {
  it('keeps what is known and why the rest is not', () => {
    const { gpus, nics } = validateSnapshot(snapshot(2));
    expect(gpus.map(gpu => gpu.index)).toEqual([0, 1]);
    expect(nics[0].rate_gbps).toEqual({
      unknown: 'the driver reports no speed'
    });
    expect(nics[1].rate_gbps).toBe(100);
  });

  it('names the field and what was found in it', () => {
    const wrong = snapshot(2);
    wrong.gpus[1].memory_bytes = 'much';
    expect(() => validateSnapshot(wrong)).toThrow(
      'snapshot.gpus[1].memory_bytes: expected a number, found "much"'
    );
  });

  it('reads a topology file that does not say whether there are GPUs', () => {
    const unclear = snapshot(0);
    unclear.probes.gpus = { status: 'unknown', reason: 'no class is given' };
    const { probes } = validateSnapshot(unclear);
    expect(probes.gpus.status).toBe('unknown');
  });

  it('takes no null for a value that is not known', () => {
    const wrong = snapshot(0);
    wrong.host.cpus = null;
    expect(() =>
      validateSnapshot({ ...wrong, host: { ...wrong.host, cpus: null } })
    ).toThrow('snapshot.host.cpus: expected a number, found null');
  });

  it('says what to do about a server of another version', () => {
    expect(() => validateSnapshot({ ...snapshot(0), version: 1 })).toThrow(
      /version 1.*version 2.*reload/
    );
  });
});

describe('validateSample', () => {
  it('reads a server that sends no RDMA counters', () => {
    const eth0 = validateSample(sample(0)).nics[1];
    expect(eth0.tx_bytes_per_s).toBe(1250);
    expect(eth0.rdma_tx_bytes_per_s).toHaveProperty('unknown');
  });
});

describe('validateFindings', () => {
  it('refuses a severity that has no colour and no word', () => {
    expect(validateFindings({ findings: [finding] })).toEqual([finding]);
    expect(() =>
      validateFindings({ findings: [{ ...finding, severity: 'bad' }] })
    ).toThrow(
      'answer.findings[0].severity: expected one of error, warning, info, found "bad"'
    );
  });
});

describe('validateMessage', () => {
  it('reads the three things that a kernel says', () => {
    expect(validateMessage({ type: 'state', cluster: null })).toEqual({
      type: 'state',
      cluster: null
    });
    expect(
      validateMessage({ type: 'state', cluster: cluster('ready') })
    ).toHaveProperty('cluster.ranks.length', 2);
    expect(validateMessage({ type: 'error', message: 'no' })).toEqual({
      type: 'error',
      message: 'no'
    });
  });

  it('refuses a state that it has no word for', () => {
    expect(() =>
      validateMessage({ type: 'state', cluster: cluster('dreaming') })
    ).toThrow('message.cluster.state');
  });
});
