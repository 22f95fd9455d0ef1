#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""An MPI program: ring, pingpong, allreduce and all-to-all. Each process checks the contents. Process 0 prints KTAP."""

import array
import itertools
import random
import sys

from mpi4py import MPI

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
# Sizes below and above the limits for messages that libfabric sends at once, and by RDMA.
SIZES = (0, 1, 8, 1000, 8192, 65537, 1 << 20)


def noise(*seed, length):
    """Returns data that every process can generate."""
    return bytearray(random.Random(repr(seed)).randbytes(length))


def ring(length):
    """Passes a message of process 0 through all processes, each of which appends its rank."""
    data = noise("ring", length=length)
    got = bytearray(length + SIZE)
    status = MPI.Status()
    if RANK == 0:
        WORLD.Send(data, dest=(RANK + 1) % SIZE, tag=length)
    WORLD.Recv(got, source=(RANK - 1) % SIZE, tag=length, status=status)
    count = status.Get_count(MPI.BYTE)
    if RANK:
        WORLD.Send(got[:count] + bytes([RANK]), dest=(RANK + 1) % SIZE, tag=length)
    before = bytes(range(1, SIZE)) if RANK == 0 else bytes(range(1, RANK))
    return got[:count] == data + before


def pingpong(length):
    """Sends data from one process of every pair to the other, which returns it in reverse."""
    good = True
    for one, other in itertools.combinations(range(SIZE), 2):
        data, got = noise("pingpong", one, other, length=length), bytearray(length)
        if one == RANK:
            WORLD.Send(data, dest=other)
            WORLD.Recv(got, source=other)
            good &= got == data[::-1]
        elif other == RANK:
            WORLD.Recv(got, source=one)
            good &= got == data
            WORLD.Send(got[::-1], dest=one)
    return good


def allreduce(length):
    """Sums numbers of all processes, with the result at every process."""
    count = length // 8 + 1
    mine = array.array("q", (RANK * 1000003 + number for number in range(count)))
    total = array.array("q", bytes(8 * count))
    WORLD.Allreduce([mine, MPI.INT64_T], [total, MPI.INT64_T], op=MPI.SUM)
    ranks = sum(range(SIZE)) * 1000003
    return all(value == ranks + number * SIZE for number, value in enumerate(total))


def alltoall(length):
    """Sends different data from every process to every process."""
    mine = b"".join(noise("alltoall", RANK, other, length=length) for other in range(SIZE))
    got = bytearray(length * SIZE)
    WORLD.Alltoall([mine, length, MPI.BYTE], [got, length, MPI.BYTE])
    return got == b"".join(noise("alltoall", other, RANK, length=length) for other in range(SIZE))


def main():
    cases = [(test, length) for test in (ring, pingpong, allreduce, alltoall) for length in SIZES]
    if RANK == 0:
        print(f"KTAP version 1\n1..{len(cases)}", flush=True)
    bad = False
    for number, (test, length) in enumerate(cases, 1):
        good = test(length)
        wrong = [rank for rank, fine in enumerate(WORLD.gather(good) or ()) if not fine]
        bad |= bool(wrong)
        if RANK == 0:
            if wrong:
                print(f"# wrong contents at the processes {wrong}")
            print(f"{'not ' if wrong else ''}ok {number} {test.__name__} of {SIZE}, {length} bytes", flush=True)
    sys.exit(1 if WORLD.bcast(bad) else 0)


main()
