"""Code that runs inside a rank.

- `engine`: handles the kernel's requests until the process ends
- `session`: the functions that the kernel calls through `calls`; creates all other objects
- `cell`: runs a cell; `interrupts`: interrupts its code; `process_state`: restores settings
  afterwards; `tracebacks` and `traceback_frames`: format its error; `gpu_errors`: explains those
  of CUDA and NCCL; `training_errors`: explains those of other libraries
- `measurement`: runs the kernel's measurements, isolated from the names and the state of cells
- `output`, `descriptors` and `console_bars`: capture its output; `window`: flow control;
  `pager`: prints what IPython would page; `widgets`: shows widgets
- `prompts`: input() and other prompts; `debugger`: breakpoint()
- `control`: answers the kernel while the main thread is blocked; `sampler`: samples the lines of
  Python that run outside all phases; `transfers`: push and pull; `profiler`: profiles
  iterations with PyTorch's profiler, which `torch_profiler` starts and reads
- `script_launchers`: makes a rank look like a process of a script to training libraries
- `attributes`: names of the attributes of its objects, for completion
- `spawned`: refuses to spawn processes that need a cell's code
- `after_import`: calls functions when a cell imports a library
- `backends/`: the process group of the ranks; `recording/`: records iterations
"""
