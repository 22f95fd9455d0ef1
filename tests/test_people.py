# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Programs of PyPI that users of EC2 have, between two guests: efa, Mooncake, MPICH with mpi4py's tests, Intel MPI with its benchmarks."""

import re
import shlex
from subprocess import CompletedProcess

import pytest
import traffic
from conftest import CLONE
from guests import result
from traffic import LIMIT

MINUTES = 15
COMBINATIONS = {"named": ["rust cloud-amd64"]}
NEEDS = ["people"]
# Intel MPI uses instructions of AVX2.
GUESTS = {"count": 2, "cpu": "max", "memory": "2G", "fabric": "realistic", "devices": ["profile=efa4"]}
PEOPLE = CLONE / "tests/people"
# Modules of mpi4py's tests. The others have nothing to do with the network, or start processes.
MODULES = ("p2p_buf", "p2p_buf_matched", "p2p_obj", "cco_buf", "cco_obj", "cco_vec", "rma")
TEST = re.compile(r"^test\w+ \(test_(.+)\).* (?:ok|(skipped|FAIL|ERROR)(?: [\"'](.*)[\"'])?)$", re.MULTILINE)
# Programs of Intel's benchmarks, with those that are run.
BENCHMARKS = {
    "IMB-MPI1": "PingPong Sendrecv Exchange Bcast Allgather Alltoall Reduce Allreduce Barrier",
    "IMB-NBC": "Ibcast Iallreduce Ialltoall",
    "IMB-RMA": "Unidir_put Unidir_get Accumulate",
}


@pytest.fixture
def programs(guests):
    """The folder of the programs, in guests that have described their PCI devices: MPICH's hwloc does not look for them."""
    folder = result("people").resolve()
    for guest in range(guests.count):
        guests.run(f"{folder}/lstopo-no-graphics --of xml >/tmp/topology.xml", guest)
    return folder


@pytest.mark.parametrize(("script", "port"), [("efa_package.py", 7200), ("mooncake_engine.py", 7201)])
def test_package(guests, programs, script, port):
    command = f"env PYTHONPATH={programs}/python/local/lib/python3.13/dist-packages python3 {PEOPLE}/{script}"
    said = traffic.pair(guests, command, f"{command} guest1", port)
    assert said.splitlines()[-1] == "all is as expected"
    traffic.left_behind(guests)


def mpiexec(guests, folder, command, **environment):
    """Runs a program of MPI on each guest."""
    words = ["env", f"LD_LIBRARY_PATH={folder}/local/lib", f"{folder}/local/bin/mpiexec", "-launcher", "ssh", "-hosts", "guest0,guest1"]
    words += ["-n", "2", "-ppn", "1"]
    words += [word for name, value in environment.items() for word in ("-genv", name, str(value))]
    return guests.tried(f"{shlex.join(words)} {command} </dev/null", timeout=LIMIT)


def as_ktap(done, results):
    """Returns what a program has run, with its results as KTAP: a name, what is not a success, and the reason of a skip."""
    lines = [
        f"{'not ok' if how in ('FAIL', 'ERROR') else 'ok'} {number} {name}{f' # SKIP {why}' if how == 'skipped' else ''}"
        for number, (name, how, why) in enumerate(results, 1)
    ]
    return CompletedProcess("", done.returncode, "\n".join(["KTAP version 1", f"1..{len(lines)}", *lines, ""]))


@pytest.mark.parametrize("module", MODULES)
def test_mpi4py(guests, programs, module, ktap):
    """mpi4py's own tests by MPICH, each as a result."""
    environment = {
        "MPI4PY_LIBMPI": f"{programs}/mpich/local/lib/libmpi.so.12",
        "PYTHONPATH": f"{programs}/python/local/lib/python3.13/dist-packages",
        "HWLOC_XMLFILE": "/tmp/topology.xml",
        # Its cache keeps registrations of memory that Python has returned.
        "FI_MR_CACHE_MAX_COUNT": 0,
        "FI_PROVIDER": "efa",
    }
    # The output of each process in a file of its own.
    script = f"exec python3 {programs}/test/main.py -v -i '^test_{module}[.]' >/tmp/mpi4py 2>&1"
    done = mpiexec(guests, programs / "mpich", f"sh -c {shlex.quote(script)}", **environment)
    said = guests.run("cat /tmp/mpi4py")
    found = TEST.findall(said)
    assert found and f"\nRan {len(found)} tests in " in said, said[-4000:]
    ktap(as_ktap(done, found))


@pytest.mark.parametrize(("program", "names"), BENCHMARKS.items())
def test_intel(guests, programs, program, names, ktap):
    """Intel MPI's benchmarks of messages up to 64 KiB, each as a result."""
    options = f"-iter 20 -time 2 -msglog 16 {names}"
    environment = {"FI_PROVIDER": "efa", "I_MPI_OFI_PROVIDER": "efa", "I_MPI_OFI_LIBRARY_INTERNAL": 0, "I_MPI_FABRICS": "ofi"}
    done = mpiexec(guests, programs / "impi", f"{programs}/impi/local/bin/{program} {options}", **environment)
    tables = re.split(r"^# Benchmarking (\w+)", done.stdout, flags=re.MULTILINE)[1:]
    whole = {
        name
        for name, rows in zip(tables[::2], tables[1::2], strict=True)
        if name == "Barrier" or re.search(r"^ +65536 ", rows, re.MULTILINE)
    }
    ktap(as_ktap(done, [(f"{program}.{name}", "" if name in whole else "FAIL", "") for name in names.split()]))
