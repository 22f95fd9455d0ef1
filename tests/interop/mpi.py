# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Open MPI over libfabric's efa provider, a process on each guest."""

import re
from pathlib import Path

import guests
from selftest import Failed

FOLDER = Path(__file__).resolve().parent
NETPIPE_OUTPUT = "/tmp/netpipe.out"
# Minimum number of sizes that NetPIPE measures up to 64 KiB.
NETPIPE_SIZES = 28

# Only libfabric's efa provider, so that all data passes through the device. Running as root is intended.
OPTIONS = {
    "pml": "cm",
    "mtl": "ofi",
    "mtl_ofi_provider_include": "efa",
    "btl": "self",
    "osc": "^ucx",
}
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "FI_PROVIDER": "efa",
    "FI_EFA_USE_DEVICE_RDMA": "1",
    "FI_EFA_FORK_SAFE": "1",
    # UCX, which Open MPI and libfabric load whether it is used or not, intercepts sbrk(). libfabric 2.1 then does not detect
    # that the heap has shrunk, and the device uses pages that no longer belong to the process, also on EC2:
    # https://github.com/ofiwg/libfabric/pull/12850
    "UCX_MEM_EVENTS": "no",
}


def mpirun(count, *command):
    """Runs an MPI program on `count` guests; returns its output."""
    hosts = ",".join(f"{guests.name(guest)}:1" for guest in range(count))
    options = [word for name, value in OPTIONS.items() for word in ("--mca", name, value)]
    exports = [word for name in ENVIRONMENT if not name.startswith("OMPI_") for word in ("-x", name)]
    return guests.run(["mpirun", "--host", hosts, "-n", count, *options, *exports, *command], environment=ENVIRONMENT)


def contents(count):
    """Runs mpi_contents.py; its results become subtests."""
    return mpirun(count, "python3", FOLDER / "mpi_contents.py")


def netpipe():
    """Runs NetPIPE with its own check of contents, which prints a line for each size, and then with its times."""
    for options in (("-i",), ()):
        output = mpirun(2, "NPopenmpi", "-l", "1", "-u", "65536", "-n", "5", "-p", "0", *options, "-o", NETPIPE_OUTPUT)
        lines = re.findall(r"^\s*\d+:\s+\d+ bytes.*-->.*$", output, re.MULTILINE)
        if len(lines) < NETPIPE_SIZES or (options and not all(line.endswith("Integrity check passed") for line in lines)):
            raise Failed(f"NPopenmpi {' '.join(options)} printed\n{output}")


def bench(count, *arguments):
    """Runs a benchmark of mpi4py, and checks that its output is complete."""
    output = mpirun(count, "python3", "-m", "mpi4py.bench", *arguments)
    if "pingpong" in arguments and len(re.findall(r"^\s*\d+\s+\d+\.\d+ \|", output, re.MULTILINE)) < 10:
        raise Failed(f"mpi4py.bench pingpong printed\n{output}")
    if "helloworld" in arguments:
        hosts = {guests.name(guest) for guest in range(count)}
        seen = set(re.findall(r"on (guest\d+)", output))
        if seen != hosts:
            raise Failed(f"processes ran on {sorted(seen)}, not on {sorted(hosts)}\n{output}")
    if "ringtest" in arguments and "time for" not in output:
        raise Failed(f"mpi4py.bench ringtest printed\n{output}")


PINGPONG = ("pingpong", "--array", "none", "-m", "1", "-n", "65536", "-l", "20", "-s", "2", "--loop-large", "5")


def tests(short):
    """Yields the cases as names and functions. Text that a function returns contains subtests."""
    if guests.GUESTS == 2:
        yield "Open MPI: contents with 2 guests", lambda: contents(2)
        if not short:
            yield "NetPIPE", netpipe
            yield "mpi4py.bench pingpong", lambda: bench(2, *PINGPONG)
    else:
        yield "mpi4py.bench helloworld on all guests", lambda: bench(guests.GUESTS, "helloworld")
        yield "mpi4py.bench ringtest", lambda: bench(guests.GUESTS, "ringtest", "-n", "1000", "-l", "20")
        yield f"Open MPI: contents with {guests.GUESTS} guests", lambda: contents(guests.GUESTS)
