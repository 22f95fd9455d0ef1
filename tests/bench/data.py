#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Measures bandwidth and latency of one transport between two guests with perftest. Guest 0 leads.

Arguments: efa or rxe, and the file for the results: MiB/s or microseconds, by name of the measurement and by size.
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / "interop"), str(TESTS / "kselftest")]

import guests
import perftest

SIZES = (2, 8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 8 << 20)
SEND_SIZES = (2, 8, 64, 512, 4 << 10, 8 << 10)
LATENCY_SIZES = (2, 64, 4 << 10)
# Approximate duration of a measurement in seconds, and its maximum number of messages. The minimum is one posted list.
TIME, MOST = 1, 19968
# Number of messages of the first measurement of a kind. The numbers for the next ones follow from its rate.
FIRST = 320
# Number of measurements per headline result, which is their median.
REPEATS = 5

# perftest's options, and the number of work requests per doorbell for bandwidth, both for receives and sends. The guest's CPU is
# emulated, so a doorbell takes longer than a copy of much data. For rxe, that is a small part of the long time per message.
TRANSPORTS = {"efa": (("-c", "SRD", "-x", "0"), 64), "rxe": (("-c", "RC"), 32)}
DEPTH = 256
# libefa accepts no inline data for an RDMA write in a work request of 64 bytes, but perftest requests it by default.
NO_INLINE = ("-I", "0")

BANDWIDTHS = {"write": ("ib_write_bw", SIZES), "read": ("ib_read_bw", SIZES), "send": ("ib_send_bw", SEND_SIZES)}
LATENCIES = {
    "send latency": ("ib_send_lat", LATENCY_SIZES),
    "write latency": ("ib_write_lat", LATENCY_SIZES),
    "read latency": ("ib_read_lat", LATENCY_SIZES),
}
# Sizes of each measurement whose results are headlines.
HEADLINES = {"write": (4 << 10, 1 << 20, 8 << 20), "send": (4 << 10,), "send latency": (64,)}


def set_up_rxe():
    """Adds an rxe device to the network card."""
    (card,) = (name for name in os.listdir("/sys/class/net") if name != "lo")
    subprocess.run(["modprobe", "rdma_rxe"], check=True)
    subprocess.run(["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", card], check=True)


def count(seconds_each, fewest=32):
    """Returns the number of messages to measure, given the seconds for each: a multiple of `fewest`."""
    return min(MOST, max(fewest, int(TIME / seconds_each) // fewest * fewest))


def repeated(name, size, measure):
    """Returns the median of REPEATS measurements for a headline, and one result otherwise."""
    values = sorted(measure() for _ in range(REPEATS if size in HEADLINES.get(name, ()) else 1))
    print(f"{name}, {size} bytes: {values}", flush=True)
    return values[len(values) // 2]


def bandwidth(device, name, options, together):
    """Returns MiB/s by size, with `together` work requests posted at once."""
    program, sizes = BANDWIDTHS[name]
    results, messages = {}, FIRST
    for size, following in itertools.pairwise((*sizes, sizes[-1])):

        def measure(size=size, messages=messages):
            lists = ["-l", together, "-t", DEPTH]
            if name == "send":
                lists += ["--recv_post_list", together]
            rows = perftest.measure(device, program, *options, *lists, "-s", size, "-n", messages)
            # perftest rounds both down: the message rate has few digits if it is low, and MiB/s if messages are small.
            return max(rows[size][perftest.RESULT] * 1e6 * size / (1 << 20), rows[size][perftest.AVERAGE])

        results[size] = repeated(name, size, measure)
        seconds = size / (1 << 20) / results[size]
        # The estimated time for the next size is between that for the same message rate and that for the same byte rate.
        messages = count(max(seconds, seconds * following / size / 2), together)
    return results


def latency(device, name, options):
    """Returns the typical latency in microseconds, by size."""
    program, sizes = LATENCIES[name]
    results, messages = {}, FIRST
    if program == "ib_write_lat":
        options = (*options, *NO_INLINE)
    for size in sizes:

        def measure(size=size, messages=messages):
            return perftest.measure(device, program, *options, "-s", size, "-n", messages)[size][perftest.TYPICAL]

        results[size] = repeated(name, size, measure)
        # A round trip takes twice the latency.
        messages = count(2 * results[size] / 1e6)
    return results


def main(transport, file):
    (device,) = os.listdir("/sys/class/infiniband")
    options, together = TRANSPORTS[transport]
    results = {name: bandwidth(device, name, options, together) for name in BANDWIDTHS}
    results |= {name: latency(device, name, options) for name in LATENCIES}
    Path(file).write_text(json.dumps(results))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in TRANSPORTS:
        sys.exit(__doc__)
    if sys.argv[1] == "rxe":
        set_up_rxe()
    guests.lead(main, *sys.argv[1:])
