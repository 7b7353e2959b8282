/** What a server sends for a VM with GPUs and RDMA, and for one without. */

/** Whatever JSON may hold: tests spoil single fields of it. */
export type Json = ReturnType<typeof JSON.parse>;

const NOT_RDMA = { unknown: 'plain NIC: no RDMA device' };

const probes = {
  host: { status: 'ok', reason: '', elapsed_ms: 1.2 },
  gpus: { status: 'ok', reason: '', elapsed_ms: 18.1 },
  nics: { status: 'ok', reason: '', elapsed_ms: 1.7 }
};

export const host = {
  hostname: 'vm1',
  hypervisor: 'VMware',
  cpus: 32,
  cpus_total: 64,
  memory_bytes: 256 * 2 ** 30,
  numa_nodes: 2,
  kernel: '6.1.0',
  os: 'Ubuntu 24.04 LTS'
};

export function gpu(index: number): Record<string, unknown> {
  return {
    index,
    uuid: `GPU-${index}`,
    name: 'NVIDIA A100-SXM4-40GB',
    pci_address: `0000:0${index}:00.0`,
    memory_bytes: 40 * 2 ** 30,
    form: 'vgpu',
    vgpu_profile: 'A100-40C',
    vgpu: {
      board: 'A100',
      slices: 0,
      memory_gb: 40,
      series: 'C',
      board_memory_gb: 40,
      whole_frame_buffer: true,
      p2p: true,
      gpudirect: true
    },
    licence: {
      state: 'licensed',
      product: 'NVIDIA Virtual Compute Server',
      expires: 'permanent'
    },
    clocks: { sm_max_mhz: 1410 },
    nvlink: { nominal_gb_per_s: { unknown: 'no NVLink in this guest' } },
    driver_version: '550.90.07',
    cuda_version: '12.4',
    compute_capability: '8.0'
  };
}

export const rdmaNic = {
  name: 'ens192',
  kind: 'rdma',
  rdma_device: 'mlx5_0',
  driver: 'mlx5_core',
  link_layer: 'Ethernet',
  rate_gbps: 100,
  state: 'up',
  mtu: 9000,
  addresses: ['10.0.0.1'],
  numa_node: 0,
  pci_address: '0000:03:00.0'
};

export const plainNic = {
  ...rdmaNic,
  name: 'eth0',
  kind: 'physical',
  rdma_device: NOT_RDMA,
  driver: 'vmxnet3',
  rate_gbps: { unknown: 'the driver reports no speed' }
};

export const virtualNic = { ...plainNic, name: 'docker0', kind: 'virtual' };

export function snapshot(gpus: number): Json {
  return {
    version: 2,
    taken_at: 1.7e9,
    host,
    gpus: Array.from({ length: gpus }, (_, index) => gpu(index)),
    nics: [plainNic, rdmaNic, virtualNic],
    probes
  };
}

/** A VM that has nothing but CPUs. */
export function bareSnapshot(): Json {
  const gpus = {
    status: 'absent',
    reason: 'the NVIDIA driver is not installed',
    elapsed_ms: 1
  };
  return { ...snapshot(0), nics: [], probes: { ...probes, gpus } };
}

const NO_COUNTER = { unknown: 'not counted in a vGPU guest' };

/** `first`: of the first GPU, what is not as of the others. */
export function sample(gpus: number, first = {}): Json {
  return {
    version: 1,
    time: 1.7e9,
    interval_s: 1,
    cpu: { percent: 37.4 },
    memory: { used_bytes: 64 * 2 ** 30, total_bytes: 256 * 2 ** 30 },
    gpus: Array.from({ length: gpus }, (_, index) => ({
      uuid: `GPU-${index}`,
      index,
      utilization_percent: 87 - index,
      memory_used_bytes: 31.2 * 2 ** 30,
      memory_total_bytes: 40 * 2 ** 30,
      power_w: { unknown: 'not reported in a vGPU guest' },
      power_limit_w: { unknown: 'not reported in a vGPU guest' },
      temperature_c: { unknown: 'not reported in a vGPU guest' },
      sm_clock_mhz: 1410,
      memory_clock_mhz: 1215,
      held_by: [],
      nvlink_tx_bytes_per_s: NO_COUNTER,
      nvlink_rx_bytes_per_s: NO_COUNTER,
      pcie_tx_bytes_per_s: 1.5e9,
      pcie_rx_bytes_per_s: 0.25e9,
      idle_s: 0,
      ...(index === 0 ? first : {})
    })),
    nics: [
      {
        name: 'ens192',
        tx_bytes_per_s: 1.25e6,
        rx_bytes_per_s: 0,
        rdma_tx_bytes_per_s: 7.6625e9,
        rdma_rx_bytes_per_s: 7.6375e9,
        tx_packets_per_s: 1200,
        rx_packets_per_s: 0,
        rdma_tx_packets_per_s: 1.87e6,
        rdma_rx_packets_per_s: 1.86e6,
        cnp_sent_per_s: 0,
        cnp_handled_per_s: 0,
        ecn_marked_per_s: 0,
        errors: { rx_dropped: 0, out_of_sequence: 0 }
      },
      {
        name: 'eth0',
        tx_bytes_per_s: 1250,
        rx_bytes_per_s: { unknown: 'needs two samples' }
      }
    ],
    processes: [
      {
        pid: 4711,
        name: 'python3',
        kind: 'rank',
        kernel_id: null,
        notebook: null,
        cluster: 'local-c8d7',
        rank: 0,
        cpu_percent: 103.4,
        memory_bytes: 4 * 2 ** 30,
        gpus: gpus > 0 ? [{ index: 0, memory_used_bytes: 31 * 2 ** 30 }] : []
      },
      {
        pid: 99,
        name: 'python3',
        kind: 'kernel',
        kernel_id: 'k1',
        notebook: 'work/train.ipynb',
        cluster: null,
        rank: null,
        cpu_percent: { unknown: 'needs two samples' },
        memory_bytes: 2 ** 30,
        gpus: []
      }
    ]
  };
}

export const finding = {
  rule: 'gpudirect-distance',
  severity: 'warning',
  subject: 'GPU 0',
  evidence: 'GPU 0 and mlx5_0 are PHB apart',
  why: 'NCCL stops at PXB: GPUDirect RDMA is off.',
  fix: 'NCCL_NET_GDR_LEVEL=PHB',
  source: 'NCCL documentation'
};

export function cluster(state: string, n = 2): Json {
  return {
    name: 'local-c8d7',
    state,
    n,
    message: '',
    ranks: Array.from({ length: n }, (_, rank) => ({
      rank,
      vm: 'vm1',
      pid: 4711 + rank,
      gpu: 'CPU',
      nic: 'lo',
      state: 'ready'
    }))
  };
}
