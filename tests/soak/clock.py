"""A step of the wall clock, as the processes of this run see it; the machine's clock stays.

A small library, loaded before the C library, adds an offset from a shared file to what the C
library's functions for the wall clock return. A time namespace could not do that: Linux has them
for other clocks only. The ranks of test VMs do not load the library, so there the kernel's clock
and theirs differ.
"""

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path

FILE = "SOAK_CLOCK"
SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long long none, *offset = &none;
__attribute__((constructor)) static void load(void) {
  const char *name = getenv("SOAK_CLOCK");
  int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *found = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
  if (found != MAP_FAILED) offset = found;
  close(file);
}
int clock_gettime(clockid_t id, struct timespec *to) {
  int result = syscall(SYS_clock_gettime, id, to);
  if (!result && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) to->tv_sec += *offset;
  return result;
}
int gettimeofday(struct timeval *to, void *zone) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (to) { to->tv_sec = now.tv_sec; to->tv_usec = now.tv_nsec / 1000; }
  return 0;
}
time_t time(time_t *to) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (to) *to = now.tv_sec;
  return now.tv_sec;
}
"""


def why_not():
    """Return why the clock cannot be stepped here; None where it can."""
    return None if shutil.which("cc") else "there is no C compiler (cc)"


def environment(folder):
    """Build the library in a folder; return the variables with which a process loads it."""
    source, library, file = folder / "clock.c", folder / "clock.so", folder / "clock"
    source.write_text(SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    file.write_bytes(struct.pack("q", 0))
    return {"LD_PRELOAD": str(library), FILE: str(file)}


def is_loaded():
    """Return whether this process has loaded the library."""
    return FILE in os.environ


def step(seconds):
    """Have the clock differ by so much from the machine's."""
    with Path(os.environ[FILE]).open("r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
        shared[:8] = struct.pack("q", int(seconds))
