# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""libfabric's own programs over its efa provider. fi_pingpong checks contents with -c."""

import functools
import itertools
import re

import guests
from selftest import Failed, Skipped

PORTS = itertools.count(47600)
# All data has to pass through the device.
ENVIRONMENT = {"FI_EFA_ENABLE_SHM_TRANSFER": "0"}
# Numbers of sent and of acknowledged messages; fi_pingpong marks equal ones by a sign.
ROW = re.compile(r"^\d+[kmg]?\s+(\d+)\s+(=?)(\d+)\s", re.MULTILINE)

# Name, options, sizes, settings of the provider, and whether the short form of the suite includes it.
EFA, DIRECT, DGRAM = ("-e", "rdm", "-f", "efa"), ("-e", "rdm", "-f", "efa-direct"), ("-e", "dgram")
KINDS = (
    ("rdm efa", EFA, "all", {"FI_EFA_USE_DEVICE_RDMA": "1"}, False),
    ("rdm efa, 1 MiB", EFA, "1048576", {"FI_EFA_USE_DEVICE_RDMA": "1"}, True),
    ("rdm efa without RDMA", EFA, "all", {"FI_EFA_USE_DEVICE_RDMA": "0"}, False),
    ("rdm efa-direct", DIRECT, "4096", {}, True),
    ("dgram", DGRAM, "4096", {}, True),
)
# fi_pingpong requests FI_MSG_PREFIX, whatever the provider needs. From this version of libfabric on, its fabric efa accepts that, but
# sends the prefix as contents (libfabric's commit 8a646339d). efa-direct has no prefix, and datagrams still have one. Open MPI does
# not request a prefix, and moves data over the fabric efa with any version.
WITHOUT_PREFIX = (2, 6)
# Index of the column usec/xfer.
TIME = 6


def info():
    """Checks that the provider offers both fabrics of reliable endpoints, and datagrams."""
    output = guests.run(["fi_info", "-p", "efa"], environment=ENVIRONMENT)
    found = set(re.findall(r"fabric: (\S+)\s+domain: \S+\s+version: \S+\s+type: (\S+)", output))
    wanted = {("efa", "FI_EP_RDM"), ("efa-direct", "FI_EP_RDM"), ("efa", "FI_EP_DGRAM")}
    if found != wanted:
        raise Failed(f"fi_info shows {sorted(found)}, not {sorted(wanted)}:\n{output}")


@functools.cache
def version():
    """Returns the version of libfabric as two numbers."""
    output = guests.run(["fi_info", "--version"])
    major, minor = re.findall(r"^libfabric: (\d+)\.(\d+)", output, re.MULTILINE)[0]
    return int(major), int(minor)


def pingpong_if_possible(options, *others):
    """Calls pingpong(), or skips it if libfabric does not meet fi_pingpong's assumptions."""
    if options == EFA and version() >= WITHOUT_PREFIX:
        raise Skipped("from libfabric 2.6 on, fi_pingpong gets a prefix of the fabric efa that this does not keep free")
    return pingpong(options, *others)


def pingpong(options, size, settings, iterations="20"):
    """Runs fi_pingpong between two guests; returns the client's output."""
    port = next(PORTS)
    command = ["fi_pingpong", "-p", "efa", "-c", "-I", iterations, "-S", size, *options]
    environment = {**ENVIRONMENT, **settings}
    output = guests.pair([*command, "-B", port], [*command, "-P", port, guests.name(1)], port, environment)
    rows = ROW.findall(output)
    if not rows or any(row != (iterations, "=", iterations) for row in rows):
        raise Failed(f"fi_pingpong printed\n{output}")
    return output


def microseconds(output):
    """Returns the time of a message's transfer in the last row of fi_pingpong's output."""
    return float(output.strip().splitlines()[-1].split()[TIME])


def tests(short, reliable_only):
    """Yields the cases as names and functions. Datagrams have no retransmission, and fi_pingpong does not repeat them."""
    yield "fi_info", info
    for name, options, size, settings, in_short in KINDS:
        if (in_short or not short) and not (reliable_only and name == "dgram"):
            yield f"fi_pingpong {name}", functools.partial(pingpong_if_possible, options, size, settings)
