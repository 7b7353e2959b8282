"""The agent: a process on each VM that starts and supervises its ranks.

- `program`: the agent's main loop, which handles the kernel's messages
- `rank_processes`: forks the ranks and observes how they end; `folder`: the folder of their logs
- `warm`: the fork server that the first agent of a kernel becomes; it forks later agents
- `record_stream`: a separate process that sends the records of all ranks to the kernel
- `on_demand`: takes snapshots and samples of the VM in threads
- `connectivity`: determines which addresses of this VM other VMs can reach
- `mpi_slot`: a separate process for each rank, if mpiexec starts the agent
- `relay`: a separate process that connects a kernel on another machine to the agent
- `engine_calls`: functions that an engine of another ipyparallel cluster runs to start the agent;
  `tunnel`: the processes that then connect the agent and the kernel
"""
