// Whatever JSON may hold.
type Json = ReturnType<typeof JSON.parse>;

const GIB = 2 ** 30;

/** A sample that suits a snapshot, at a time in seconds; each figure moves. */
export function sampleOf(
  snapshot: Json,
  seconds: number,
  first: Json = {}
): Json {
  const wave = (phase: number): number =>
    0.5 + 0.45 * Math.sin(seconds / 3 + phase) + 0.05 * Math.sin(seconds * 7);
  return {
    version: 1,
    time: 1.7e9 + seconds,
    interval_s: 1,
    cpu: { percent: 20 + 40 * wave(1) },
    memory: { used_bytes: 60 * GIB, total_bytes: 256 * GIB },
    gpus: snapshot.gpus.map((gpu: Json, place: number) => ({
      index: gpu.index,
      uuid: gpu.uuid,
      utilization_percent: 100 * Math.min(1, 0.6 + 0.4 * wave(place / 4)),
      memory_used_bytes: 0.78 * gpu.memory_bytes,
      memory_total_bytes: gpu.memory_bytes,
      power_w: 300 + 90 * wave(place),
      power_limit_w: 400,
      temperature_c: 55 + place,
      sm_clock_mhz: 1380,
      memory_clock_mhz: 1215,
      held_by: [],
      nvlink_tx_bytes_per_s: 30e9 * wave(place),
      nvlink_rx_bytes_per_s: 29e9 * wave(place),
      pcie_tx_bytes_per_s: 2e9 * wave(place),
      pcie_rx_bytes_per_s: 0.4e9 * wave(place),
      idle_s: 0,
      ...(place === 0 ? first : {})
    })),
    nics: snapshot.nics.map((nic: Json, place: number) => ({
      name: nic.name,
      tx_bytes_per_s: 2e4 * wave(place),
      rx_bytes_per_s: 3e4 * wave(place + 1),
      ...rdmaOf(nic, wave(place)),
      tx_packets_per_s: 120,
      rx_packets_per_s: 140,
      errors: { rx_dropped: 0, tx_dropped: 0 }
    })),
    processes: snapshot.gpus.slice(0, 8).map((gpu: Json, place: number) => ({
      pid: 4711 + place,
      name: 'python3',
      kind: 'rank',
      kernel_id: null,
      notebook: null,
      cluster: 'train',
      rank: place,
      cpu_percent: 100 + 20 * wave(place),
      memory_bytes: 6.3 * GIB,
      gpus: [{ index: gpu.index, memory_used_bytes: 0.76 * gpu.memory_bytes }]
    }))
  };
}

function rdmaOf(nic: Json, share: number): Json {
  const none = { unknown: 'plain NIC: no RDMA device' };
  const rdma = nic.kind === 'rdma';
  const rate = (value: number): Json => (rdma ? value : none);
  return {
    rdma_tx_bytes_per_s: rate(11e9 * share),
    rdma_rx_bytes_per_s: rate(10.8e9 * share),
    rdma_tx_packets_per_s: rate(2.6e6 * share),
    rdma_rx_packets_per_s: rate(2.6e6 * share),
    cnp_sent_per_s: rate(0),
    cnp_handled_per_s: rate(0),
    ecn_marked_per_s: rate(0)
  };
}
