# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""perftest between two guests. It moves data and counts completions; that contents are right, contents.py tests."""

import itertools
import re

import guests
from selftest import Failed

# Each run has a port of its own: the one before may not be free yet.
PORTS = itertools.count(18600)
# A standard deviation can be -nan, if one time is much longer than the others.
ROW = re.compile(r"^[ \t]*(\d+)((?:[ \t]+(?:\d+(?:\.\d+)?|-?nan|inf)){3,})[ \t]*$", re.MULTILINE)

# The line that it prints, maybe right behind a row, if it could not measure the frequency of its clock before that row. An emulated
# CPU may stall between the reads of two clocks. The row has zeros or infinities then.
NO_CLOCK = re.compile(r"Correlation coefficient r\^2: .*")
CLOCK_TRIES = 5

# Indices of a row's values, after the size.
ITERATIONS, AVERAGE = 0, 2
# The typical latency, or the rate of messages, which is not rounded to 0 as that of few bytes is.
TYPICAL = RESULT = 3

SRD = ("-c", "SRD", "-x", "0")
UD = ("-c", "UD", "-x", "0")
# With events, ib_send_lat posts its next send even if the one before has not completed. A send queue with room for all of them makes
# that harmless.
UNPOLLED = ("-e", "-n", "200", "-t", "200", "-Q", "1")
ALL_SIZES = 23
# Every send of at most the MTU, which is 8928.
SEND_SIZES = 13


def rows(output):
    """The values of each message size, as a table of perftest has them."""
    _, _, table = NO_CLOCK.sub("", output).partition("#bytes")
    return {int(size): [float(value) for value in values.split()] for size, values in ROW.findall(table)}


def run(device, program, *options):
    """Runs a program of perftest between two guests; returns what its client prints."""
    port = next(PORTS)
    command = [program, "-d", device, "-F", "-p", port, *options]
    return guests.pair(command, [*command, guests.name(1)], port)


def run_with_clock(device, program, *options):
    """The same, again if its client had no clock."""
    output = ""
    for _ in range(CLOCK_TRIES):
        output = run(device, program, *options)
        if not NO_CLOCK.search(output):
            return output
    raise Failed(f"{program} had no clock in {CLOCK_TRIES} runs:\n{output}")


def measure(device, program, *options):
    """The rows of a program of perftest that had a clock."""
    output = run_with_clock(device, program, *options)
    found = rows(output)
    if not found:
        raise Failed(f"{program} printed no result:\n{output}")
    return found


def powers(count):
    return [2**power for power in range(1, count + 1)]


# Name, program, options, and which sizes have to be in the result. In the short form of the suite those marked.
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
    # libefa takes no inline data for an RDMA write in a work request of 64 bytes, and perftest asks for it.
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
    # libefa takes no work request without completion, of which perftest knows for SRD only.
    ("ib_send_bw UD, 4 KiB", "ib_send_bw", (*UD, "-Q", "1", "-s", "4096", "-n", "1000"), [4096], True),
    (
        *("ib_send_bw UD, 4 QPs, both directions", "ib_send_bw"),
        *((*UD, "-Q", "1", "-s", "2048", "-n", "500", "-q", "4", "-b"), [2048], False),
    ),
)


# What libefa makes work requests of 128 bytes for; that of rdma-core 56 knows none. RDMA writes with inline data want a flag of EFA's
# own, which perftest does not set.
INLINE_MATRIX = (
    *((f"ib_send_lat SRD, {size} B inline", "ib_send_lat", (*SRD, "-I", "80", "-s", size, "-n", "200"), [size]) for size in (1, 33, 80)),
    ("ib_send_bw SRD, 80 B inline, 4 QPs", "ib_send_bw", (*SRD, "-I", "80", "-s", "80", "-n", "500", "-q", "4"), [80]),
    ("ib_send_lat UD, 80 B inline", "ib_send_lat", (*UD, "-I", "80", "-s", "80", "-n", "200"), [80]),
)


def test(device, program, options, sizes):
    """One case of the matrix: each size has a row, which perftest prints once it has moved as many messages as it was told to. How fast
    that was, which is of its clock, is of no interest.
    """
    output = run(device, program, *options)
    found = rows(output)
    wanted = int(options[options.index("-n") + 1])
    if sorted(found) != sizes or any(values[ITERATIONS] < wanted for values in found.values()):
        moved = {size: int(values[ITERATIONS]) for size, values in sorted(found.items())}
        raise Failed(f"the sizes and how many of each are {moved}, which have to be {sizes} and {wanted}:\n{output}")


def is_possible(options, condition):
    """Whether perftest is run on such a network: it waits for datagrams that are lost."""
    return not ("UD" in options and condition.lossy)


def inline_tests(device, condition):
    """Those of inline data in large work requests."""
    for name, program, options, sizes in INLINE_MATRIX:
        if is_possible(options, condition):
            yield name, lambda program=program, options=options, sizes=sizes: test(device, program, options, sizes)


def tests(device, short, condition):
    """The cases, as names and functions."""
    for name, program, options, sizes, in_short in MATRIX:
        if (in_short or not short) and is_possible(options, condition):
            yield name, lambda program=program, options=options, sizes=sizes: test(device, program, options, sizes)
