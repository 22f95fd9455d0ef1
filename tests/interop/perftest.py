# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""perftest between two guests. It moves data and counts completions; contents.py checks contents."""

import itertools
import re

import guests
from selftest import Failed

# Each run has a port of its own, as the previous run's port may not be free yet.
PORTS = itertools.count(18600)
# A standard deviation can be -nan, if one time is much longer than the others.
ROW = re.compile(r"^[ \t]*(\d+)((?:[ \t]+(?:\d+(?:\.\d+)?|-?nan|inf)){3,})[ \t]*$", re.MULTILINE)

# perftest's line, maybe directly behind a row, if it could not measure the frequency of its clock before that row. An emulated
# CPU may stall between the reads of two clocks. The row has zeros or infinities then.
NO_CLOCK = re.compile(r"Correlation coefficient r\^2: .*")
CLOCK_TRIES = 5

# Indices of a row's values, after the size.
ITERATIONS, AVERAGE = 0, 2
# The typical latency, or the rate of messages. The bandwidth of short messages would be rounded to 0.
TYPICAL = RESULT = 3

SRD = ("-c", "SRD", "-x", "0")
UD = ("-c", "UD", "-x", "0")
# With events, ib_send_lat posts its next send even if the previous one has not completed. A send queue with room for all of them
# makes that harmless.
UNPOLLED = ("-e", "-n", "200", "-t", "200", "-Q", "1")
ALL_SIZES = 23
# Every send of at most the MTU, which is 8928.
SEND_SIZES = 13


def rows(output):
    """Returns the values of each message size in perftest's table."""
    _, _, table = NO_CLOCK.sub("", output).partition("#bytes")
    return {int(size): [float(value) for value in values.split()] for size, values in ROW.findall(table)}


def run(device, program, *options):
    """Runs a program of perftest between two guests; returns its client's output."""
    port = next(PORTS)
    command = [program, "-d", device, "-F", "-p", port, *options]
    return guests.pair(command, [*command, guests.name(1)], port)


def run_with_clock(device, program, *options):
    """Calls run(), and repeats it if the client could not measure its clock."""
    output = ""
    for _ in range(CLOCK_TRIES):
        output = run(device, program, *options)
        if not NO_CLOCK.search(output):
            return output
    raise Failed(f"{program} had no clock in {CLOCK_TRIES} runs:\n{output}")


def measure(device, program, *options):
    """Runs a program of perftest until it could measure its clock; returns its rows."""
    output = run_with_clock(device, program, *options)
    found = rows(output)
    if not found:
        raise Failed(f"{program} printed no result:\n{output}")
    return found


def powers(count):
    return [2**power for power in range(1, count + 1)]


# Name, program, options, sizes that have to be in the result, and whether the short form of the suite includes it.
MATRIX = (
    ("ib_send_lat SRD, all sizes", "ib_send_lat", (*SRD, "-a", "-n", "100"), powers(SEND_SIZES), False),
    ("ib_send_lat SRD, 64 B", "ib_send_lat", (*SRD, "-s", "64", "-n", "500"), [64], False),
    ("ib_send_lat SRD with events", "ib_send_lat", (*SRD, "-s", "64", *UNPOLLED), [64], True),
    ("ib_send_bw SRD, all sizes", "ib_send_bw", (*SRD, "-a", "-n", "500"), powers(SEND_SIZES), False),
    ("ib_send_bw SRD, 4 QPs, both directions", "ib_send_bw", (*SRD, "-s", "8192", "-n", "1000", "-q", "4", "-b"), [8192], True),
    ("ib_send_bw SRD with events", "ib_send_bw", (*SRD, "-s", "4096", "-n", "500", "-e"), [4096], False),
    ("ib_read_lat SRD, all sizes", "ib_read_lat", (*SRD, "-a", "-n", "50"), powers(ALL_SIZES), False),
    ("ib_read_bw SRD, 1 MiB", "ib_read_bw", (*SRD, "-s", "1048576", "-n", "200"), [1 << 20], True),
    ("ib_read_bw SRD, all sizes, 4 QPs", "ib_read_bw", (*SRD, "-a", "-n", "50", "-q", "4"), powers(ALL_SIZES), False),
    ("ib_read_bw SRD, both directions", "ib_read_bw", (*SRD, "-s", "65536", "-n", "500", "-b"), [65536], False),
    ("ib_read_bw SRD with events", "ib_read_bw", (*SRD, "-s", "65536", "-n", "200", "-e"), [65536], False),
    # libefa accepts no inline data for an RDMA write in a 64-byte work request, and perftest requests it.
    ("ib_write_lat SRD, all sizes", "ib_write_lat", (*SRD, "-I", "0", "-a", "-n", "50"), powers(ALL_SIZES), False),
    ("ib_write_bw SRD, 1 MiB", "ib_write_bw", (*SRD, "-s", "1048576", "-n", "200"), [1 << 20], True),
    ("ib_write_bw SRD, all sizes, 4 QPs", "ib_write_bw", (*SRD, "-a", "-n", "50", "-q", "4"), powers(ALL_SIZES), False),
    ("ib_write_bw SRD, both directions", "ib_write_bw", (*SRD, "-s", "65536", "-n", "500", "-b"), [65536], False),
    ("ib_write_bw SRD with immediate", "ib_write_bw", (*SRD, "-s", "65536", "-n", "500", "--write_with_imm"), [65536], False),
    (
        *("ib_write_bw SRD with immediate, unsolicited", "ib_write_bw"),
        *((*SRD, "-s", "65536", "-n", "500", "--write_with_imm", "--unsolicited_write"), [65536], False),
    ),
    ("ib_send_lat UD, 64 B", "ib_send_lat", (*UD, "-s", "64", "-n", "500"), [64], False),
    ("ib_send_lat UD with events", "ib_send_lat", (*UD, "-s", "64", *UNPOLLED), [64], False),
    # libefa accepts no work request without a completion. perftest respects this for SRD only.
    ("ib_send_bw UD, 4 KiB", "ib_send_bw", (*UD, "-Q", "1", "-s", "4096", "-n", "1000"), [4096], True),
    (
        *("ib_send_bw UD, 4 QPs, both directions", "ib_send_bw"),
        *((*UD, "-Q", "1", "-s", "2048", "-n", "500", "-q", "4", "-b"), [2048], False),
    ),
)


# Cases for which libefa uses 128-byte work requests, which rdma-core 56 does not support. RDMA writes with inline data need a flag
# of EFA, which perftest does not set.
INLINE_MATRIX = (
    *((f"ib_send_lat SRD, {size} B inline", "ib_send_lat", (*SRD, "-I", "80", "-s", size, "-n", "200"), [size]) for size in (1, 33, 80)),
    ("ib_send_bw SRD, 80 B inline, 4 QPs", "ib_send_bw", (*SRD, "-I", "80", "-s", "80", "-n", "500", "-q", "4"), [80]),
    ("ib_send_lat UD, 80 B inline", "ib_send_lat", (*UD, "-I", "80", "-s", "80", "-n", "200"), [80]),
)


def test(device, program, options, sizes):
    """Runs a case of the matrix. perftest prints a row for each size once it has moved the requested number of messages. Speeds are not
    checked, as they depend on its clock.
    """
    output = run(device, program, *options)
    found = rows(output)
    wanted = int(options[options.index("-n") + 1])
    if sorted(found) != sizes or any(values[ITERATIONS] < wanted for values in found.values()):
        moved = {size: int(values[ITERATIONS]) for size, values in sorted(found.items())}
        raise Failed(f"the sizes and how many of each are {moved}, not {sizes} and {wanted}:\n{output}")


def is_possible(options, condition):
    """Whether perftest is run on such a network. It waits for lost datagrams."""
    return not ("UD" in options and condition.lossy)


def inline_tests(device, condition):
    """Yields the cases of inline data in 128-byte work requests."""
    for name, program, options, sizes in INLINE_MATRIX:
        if is_possible(options, condition):
            yield name, lambda program=program, options=options, sizes=sizes: test(device, program, options, sizes)


def tests(device, short, condition):
    """Yields the cases as names and functions."""
    for name, program, options, sizes, in_short in MATRIX:
        if (in_short or not short) and is_possible(options, condition):
            yield name, lambda program=program, options=options, sizes=sizes: test(device, program, options, sizes)
