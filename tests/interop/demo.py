#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Shows two guests that move data over EFA: the device, libfabric's fi_pingpong, perftest's ib_write_bw, and their figures."""

import os
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "kselftest"))

import guests
import libfabric
import perftest

MESSAGE = 1 << 20


def show(title, output):
    """Prints a command and its output."""
    print(f"\n$ {title}\n{output.strip()}", flush=True)


def main():
    device = sorted(os.listdir("/sys/class/infiniband"))[0]
    show("ibv_devinfo -v", subprocess.run(["ibv_devinfo", "-v", "-d", device], capture_output=True, text=True, check=True).stdout)

    pingpong = libfabric.pingpong(libfabric.EFA, "64", {}, "200")
    show("fi_pingpong -p efa -e rdm -f efa -c -I 200 -S 64 guest1", pingpong)

    options = (*perftest.SRD, "-s", MESSAGE, "-n", 500)
    write = perftest.run_with_clock(device, "ib_write_bw", *options)
    show(f"ib_write_bw -d {device} -F {' '.join(map(str, options))} guest1", write)

    latency = perftest.measure(device, "ib_send_lat", *perftest.SRD, "-s", "64", "-n", 500)[64][perftest.TYPICAL]
    rows = (
        ("SRD send of 64 B, ib_send_lat, typical", f"{latency:.1f} us"),
        ("message of 64 B over libfabric, fi_pingpong, mean", f"{libfabric.microseconds(pingpong):.1f} us"),
        ("RDMA write of 1 MiB, ib_write_bw, average", f"{perftest.rows(write)[MESSAGE][perftest.AVERAGE]:.0f} MiB/s"),
    )
    print("\nBetween two guests, over two emulated EFAs:")
    for what, value in rows:
        print(f"  {what:<52}{value:>12}")
    print(flush=True)


if __name__ == "__main__":
    guests.lead(main)
