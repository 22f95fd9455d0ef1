# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Data between two guests, whose network delays and reorders packets as EC2's: contents of all operations, perftest, libfabric, Open MPI.

perftest moves data and counts completions; the other programs check contents.
"""

import re

import pytest
import traffic
from conftest import CLONE
from guests import ProgramFailed
from traffic import DGRAM, DIRECT, EFA, GOOD, NETWORKS, SRD, UD

DATA = CLONE / "tests/data"
MINUTES = 4
COMBINATIONS = {"check": ["rust cloud-amd64"], "all": ["c cloud-amd64"], "named": ["rust amd64"]}
GUESTS = {"count": 2, "cpus": 1, "fabric": "realistic", "devices": [f"profile={name},keep_alive_ms=0" for name in ("efa3", "efa4")]}
CONTENTS_PORT = 7100
# Networks that lose packets. Nobody repeats datagrams: perftest waits for them, and fi_pingpong fails.
LOSSY = ("1 % loss", "one of four paths down")

# perftest's programs, those of check first. With events, ib_send_lat posts its next send even if the previous one has not completed. A send
# queue with room for all of them makes that harmless. libefa accepts no work request without a completion, which perftest respects for SRD
# only, and no inline data for an RDMA write in a 64-byte work request, which perftest requests.
UNPOLLED = "-e -n 200 -t 200 -Q 1"
PERFTEST = (
    f"ib_send_lat {SRD} -s 64 {UNPOLLED}",
    f"ib_send_bw {SRD} -s 8192 -n 1000 -q 4 -b",
    f"ib_read_bw {SRD} -s 1048576 -n 200",
    f"ib_write_bw {SRD} -s 1048576 -n 200",
    f"ib_send_bw {UD} -Q 1 -s 4096 -n 1000",
)
MORE_PERFTEST = (
    f"ib_send_lat {SRD} -a -n 100",
    f"ib_send_lat {SRD} -s 64 -n 500",
    f"ib_send_bw {SRD} -a -n 500",
    f"ib_send_bw {SRD} -s 4096 -n 500 -e",
    f"ib_read_lat {SRD} -a -n 50",
    f"ib_read_bw {SRD} -a -n 50 -q 4",
    f"ib_read_bw {SRD} -s 65536 -n 500 -b",
    f"ib_read_bw {SRD} -s 65536 -n 200 -e",
    f"ib_write_lat {SRD} -I 0 -a -n 50",
    f"ib_write_bw {SRD} -a -n 50 -q 4",
    f"ib_write_bw {SRD} -s 65536 -n 500 -b",
    f"ib_write_bw {SRD} -s 65536 -n 500 --write_with_imm",
    f"ib_write_bw {SRD} -s 65536 -n 500 --write_with_imm --unsolicited_write",
    f"ib_send_lat {UD} -s 64 -n 500",
    f"ib_send_lat {UD} -s 64 {UNPOLLED}",
    f"ib_send_bw {UD} -Q 1 -s 2048 -n 500 -q 4 -b",
)
# libefa uses 128-byte work requests for these, which rdma-core 56 does not support.
INLINE = (
    *(f"ib_send_lat {SRD} -I 80 -s {size} -n 200" for size in (1, 33, 80)),
    f"ib_send_bw {SRD} -I 80 -s 80 -n 500 -q 4",
    f"ib_send_lat {UD} -I 80 -s 80 -n 200",
)
# Powers of 2 that -a takes: every send of at most the MTU, which is 8928, and up to 8 MiB.
SEND_SIZES, ALL_SIZES = 13, 23

RDMA = "FI_EFA_USE_DEVICE_RDMA="
LIBFABRIC = (f"{EFA} -S 1048576, {RDMA}1", f"{DIRECT} -S 4096,", f"{DGRAM} -S 4096,")
MORE_LIBFABRIC = (f"{EFA} -S all, {RDMA}1", f"{EFA} -S all, {RDMA}0")
# fi_pingpong requests FI_MSG_PREFIX, whatever the provider needs. From this version of libfabric on, its fabric efa accepts that, but sends
# the prefix as contents (libfabric's commit 8a646339d). efa-direct has no prefix, and datagrams still have one.
WITHOUT_PREFIX = (2, 6)

# Open MPI with libfabric's efa provider only, so that all data passes through the device. UCX, which Open MPI and libfabric load whether it
# is used or not, intercepts sbrk(). libfabric 2.1 then does not detect that the heap has shrunk, and the device uses pages that no longer
# belong to the process, also on EC2: https://github.com/ofiwg/libfabric/pull/12850
MPI = (
    "mpirun --allow-run-as-root --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include efa --mca btl self --mca osc ^ucx"
    f" -x FI_PROVIDER=efa -x {RDMA}1 -x FI_EFA_FORK_SAFE=1 -x UCX_MEM_EVENTS=no"
)
NETPIPE = "NPopenmpi -l 1 -u 65536 -n 5 -p 0 -o /tmp/netpipe.out"
# Minimum number of sizes that NetPIPE measures up to 64 KiB.
NETPIPE_SIZES = 28
PINGPONG = "pingpong --array none -m 1 -n 65536 -l 20 -s 2 --loop-large 5"


def networks(tier):
    """Makes a test run on all networks, on the bad ones from this tier on."""
    marks = {name: [] if name == GOOD else [pytest.mark.tier(tier)] for name in NETWORKS}
    return pytest.mark.parametrize("network", [pytest.param(name, marks=marks[name]) for name in NETWORKS], indirect=True)


def both(name, some, more):
    """Makes a test run with some arguments, and with more of them if its suite is named."""
    return pytest.mark.parametrize(name, [*some, *(pytest.param(one, marks=pytest.mark.tier("named")) for one in more)])


@pytest.fixture
def network(request, guests):
    with traffic.network(guests, NETWORKS[request.param]):
        yield request.param


@pytest.fixture
def stable(options):
    if options["userland"] != "stable":
        pytest.skip("the next userland has only what uses its rdma-core directly")


def contents(guests, lossy=False):
    """Runs data/contents.py; returns its output."""
    program = f"env {'EFA_LOSS=1' * lossy} {DATA}/contents.py"
    return traffic.pair(guests, f"{program} serve", f"{program} test guest1", CONTENTS_PORT)


@networks("all")
def test_contents(guests, network, ktap):
    ktap(traffic.tried(contents, guests, network in LOSSY))


@pytest.mark.tier("all")
def test_wrong_bits(guests):
    """One bit of each packet is wrong: each case fails."""
    with traffic.network(guests, traffic.WRONG_BITS):
        said = traffic.tried(contents, guests).stdout
    assert "not ok 1 " in said and not re.findall(r"^ok \d+ .*", said, re.MULTILINE), said


def moves(guests, command, network):
    """Fails unless perftest has moved the requested number of each size. Speeds are not checked, as they depend on its clock."""
    if UD in command and network in LOSSY:
        pytest.skip("perftest waits for lost datagrams")
    said = traffic.perftest(guests, command)
    words = command.split()
    powers = [2**power for power in range(1, 1 + (SEND_SIZES if "send" in command else ALL_SIZES))]
    sizes = powers if "-a" in words else [int(words[words.index("-s") + 1])]
    moved = {size: values[traffic.ITERATIONS] for size, values in traffic.rows(said).items()}
    wanted = int(words[words.index("-n") + 1])
    assert sorted(moved) == sizes and min(moved.values()) >= wanted, f"moved {moved}, not {wanted} of each of {sizes}:\n{said}"


@networks("named")
@both("command", PERFTEST, MORE_PERFTEST)
def test_perftest(guests, command, network):
    moves(guests, command, network)


@pytest.mark.tier("named")
@networks("named")
@pytest.mark.parametrize("command", INLINE)
def test_inline(options, guests, command, network):
    if options["userland"] == "stable":
        pytest.skip("needs USERLAND=next, with rdma-core 65")
    moves(guests, command, network)


def test_fi_info(guests):
    """The provider offers both fabrics of reliable endpoints, and datagrams."""
    said = guests.run(f"{traffic.LIBFABRIC} fi_info -p efa")
    found = set(re.findall(r"fabric: (\S+)\s+domain: \S+\s+version: \S+\s+type: (\S+)", said))
    assert found == {("efa", "FI_EP_RDM"), ("efa-direct", "FI_EP_RDM"), ("efa", "FI_EP_DGRAM")}, said


@networks("named")
@both("kind", LIBFABRIC, MORE_LIBFABRIC)
def test_libfabric(guests, kind, network):
    options, environment = kind.split(",")
    if DGRAM in options and network in LOSSY:
        pytest.skip("fi_pingpong does not repeat lost datagrams")
    (version,) = re.findall(r"^libfabric: (\d+)\.(\d+)", guests.run("fi_info --version"), re.MULTILINE)
    if f"{EFA} " in options and tuple(map(int, version)) >= WITHOUT_PREFIX:
        pytest.skip("from libfabric 2.6 on, fi_pingpong gets a prefix of the fabric efa that this does not keep free")
    traffic.pingpong(guests, options, environment=environment)


@pytest.mark.tier("all")
@pytest.mark.parametrize("kind", [DIRECT, DGRAM])
def test_wrong_bits_of_libfabric(guests, kind):
    """fi_pingpong reports wrong bits, with endpoints for which libfabric adds no data of its own to packets."""
    with traffic.network(guests, traffic.WRONG_BITS), pytest.raises(ProgramFailed, match="Error at iteration"):
        traffic.pingpong(guests, f"{kind} -S 4096")


def mpirun(guests, command):
    """Runs an MPI program, a process on each guest."""
    hosts = ",".join(f"guest{guest}:1" for guest in range(guests.count))
    return guests.tried(f"{MPI} --host {hosts} -n {guests.count} {command}", timeout=traffic.LIMIT)


def mpi4py(guests, arguments, pattern):
    """Runs a benchmark of mpi4py; returns the parts of its output that match."""
    done = mpirun(guests, f"python3 -m mpi4py.bench {arguments}")
    found = re.findall(pattern, done.stdout, re.MULTILINE)
    assert done.returncode == 0 and found, done.stdout
    return found


@networks("named")
def test_mpi_contents(stable, guests, network, ktap):
    ktap(mpirun(guests, f"python3 {DATA}/mpi_contents.py"))


@pytest.mark.tier("named")
@networks("named")
def test_netpipe(stable, guests, network):
    """NetPIPE with its own check of contents, which prints a line for each size, and then with its times."""
    for option, end in (("-i", "Integrity check passed"), ("", "")):
        done = mpirun(guests, f"{NETPIPE} {option}")
        lines = re.findall(rf"^\s*\d+:\s+\d+ bytes.*-->.*{end}$", done.stdout, re.MULTILINE)
        assert done.returncode == 0 and len(lines) >= NETPIPE_SIZES, done.stdout


@pytest.mark.tier("named")
@networks("named")
def test_mpi4py(stable, guests, network):
    assert len(mpi4py(guests, PINGPONG, r"^\s*\d+\s+\d+\.\d+ \|")) >= 10


def test_nothing_is_left_behind(guests):
    traffic.left_behind(guests)
