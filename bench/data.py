#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Bandwidth and latency of the emulated devices by perftest, compared with rdma_rxe in the same guests and with a plain memcpy."""

import argparse
import itertools
import json
import re
import subprocess

import report
import srd
from guests import PATIENCE, SHARED, Guests, release, result
from report import KIB, MIB

# The only flavour that has rdma_rxe.
FLAVOUR = "amd64"
DEVICE = "profile=efa3"
MESSAGE, PAGE, LARGE = 64, 4 * KIB, MIB
SIZES = (2, 8, 64, 512, 4 * KIB, 32 * KIB, 256 * KIB, MIB, 8 * MIB)
SEND_SIZES = (2, 8, 64, 512, 4 * KIB, 8 * KIB)
LATENCY_SIZES = (2, 64, 4 * KIB)
BANDWIDTHS = {"write": ("ib_write_bw", SIZES), "read": ("ib_read_bw", SIZES), "send": ("ib_send_bw", SEND_SIZES)}
LATENCIES = {
    "send latency": ("ib_send_lat", LATENCY_SIZES),
    "write latency": ("ib_write_lat", LATENCY_SIZES),
    "read latency": ("ib_read_lat", LATENCY_SIZES),
}
# Sizes of each measurement whose results are headlines: medians of REPEATS measurements.
HEADLINES = {"write": (PAGE, MIB, 8 * MIB), "send": (PAGE,), "send latency": (MESSAGE,)}
REPEATS = 5
# Approximate duration of a measurement in seconds, and its maximum number of messages. The minimum is one posted list.
TIME, MOST = 1, 19968
# Number of messages of the first measurement of a kind. The numbers for the next ones follow from its rate.
FIRST = 320

# perftest's options, and the number of work requests per doorbell for bandwidth, both for receives and sends. The guest's CPU is
# emulated, so a doorbell takes longer than a copy of much data. For rxe, that is a small part of the long time per message.
TRANSPORTS = {"efa": ("-c SRD -x 0", 64), "rxe": ("-c RC", 32)}
DEPTH = 256
# libefa accepts no inline data for an RDMA write in a work request of 64 bytes, but perftest requests it by default.
NO_INLINE = "-I 0"
# Adds an rxe device to the network card between the guests.
SET_UP_RXE = """
    card=$(grep -l 52:54:00:ef:a0 /sys/class/net/*/address)
    modprobe rdma_rxe && rdma link add rxe0 type rxe netdev "$(basename "${card%/address}")"
"""
# A row of perftest's table: a size and its values, by their place: the typical latency, or the rate of messages in millions.
ROW = re.compile(r"^[ \t]*(\d+)((?:[ \t]+(?:\d+(?:\.\d+)?|-?nan|inf)){3,})[ \t]*$", re.MULTILINE)
AVERAGE = 2
TYPICAL = RATE = 3
# perftest's line if it could not measure the frequency of its clock: an emulated CPU may stall between the reads of two clocks.
NO_CLOCK = "Correlation coefficient r^2:"
CLOCK_TRIES = 5


class Perftest:
    """perftest between two guests over one transport."""

    def __init__(self, guests, transport):
        self.guests, self.transport = guests, transport
        self.options, self.together = TRANSPORTS[transport]
        # Each run has a port of its own, as the previous run's port may not be free yet.
        self.ports = itertools.count(18600)

    def run(self, program, options):
        """Runs a program on both guests; returns the values of its row."""
        said = ""
        for _ in range(CLOCK_TRIES):
            port = next(self.ports)
            command = f"{program} -d $(ls /sys/class/infiniband) -F -p {port} {self.options} {options}"
            with self.guests.popen(f"{command} >{SHARED}/out/server 2>&1", guest=1):
                listens = f"until grep -q ':{port:04X} ' /proc/net/tcp /proc/net/tcp6; do busybox usleep 50000; done"
                self.guests.run(listens, guest=1, timeout=PATIENCE)
                said = self.guests.run(f"{command} guest1")
            if NO_CLOCK not in said and (row := ROW.search(said.partition("#bytes")[2])):
                return [float(value) for value in row[2].split()]
        raise ValueError(f"{program} had no clock or no result in {CLOCK_TRIES} runs:\n{said}")

    def repeated(self, name, size, measure):
        """Returns the median of REPEATS measurements for a headline, and one result otherwise."""
        values = sorted(measure() for _ in range(REPEATS if size in HEADLINES.get(name, ()) else 1))
        report.note(f"{self.transport} {name}, {size} bytes: {values}")
        return values[len(values) // 2]

    def bandwidth(self, name):
        """Returns MiB/s by size."""
        program, sizes = BANDWIDTHS[name]
        lists = f"-l {self.together} -t {DEPTH}" + (f" --recv_post_list {self.together}" if name == "send" else "")
        results, messages = {}, FIRST
        for size, following in itertools.pairwise((*sizes, sizes[-1])):

            def measure(size=size, messages=messages):
                values = self.run(program, f"{lists} -s {size} -n {messages}")
                # perftest rounds both down: the message rate has few digits if it is low, and MiB/s if messages are small.
                return max(values[RATE] * 1e6 * size / MIB, values[AVERAGE])

            results[size] = self.repeated(name, size, measure)
            seconds = size / MIB / results[size]
            # The estimated time for the next size is between that for the same message rate and that for the same byte rate.
            messages = count(max(seconds, seconds * following / size / 2), self.together)
        return results

    def latency(self, name):
        """Returns the typical latency in microseconds, by size."""
        program, sizes = LATENCIES[name]
        inline = NO_INLINE if program == "ib_write_lat" else ""
        results, messages = {}, FIRST
        for size in sizes:

            def measure(size=size, messages=messages):
                return self.run(program, f"{inline} -s {size} -n {messages}")[TYPICAL]

            results[size] = self.repeated(name, size, measure)
            # A round trip takes twice the latency.
            messages = count(2 * results[size] / 1e6)
        return results


def count(seconds_each, fewest=32):
    """Returns the number of messages to measure, given the seconds for each: a multiple of `fewest`."""
    return min(MOST, max(fewest, int(TIME / seconds_each) // fewest * fewest))


def measure(transport, driver):
    """Measures one transport; returns MiB/s or microseconds, by name of the measurement and by size."""
    driver, devices = (driver, [DEVICE]) if transport == "efa" else ("none", [])
    with Guests(2, devices, driver=driver, flavour=FLAVOUR, threads=True, build="bench-emulator") as guests:
        for guest in range(2 * (transport == "rxe")):
            guests.run(SET_UP_RXE, guest)
        perftest = Perftest(guests, transport)
        return {name: perftest.bandwidth(name) for name in BANDWIDTHS} | {name: perftest.latency(name) for name in LATENCIES}


def printed(*command):
    report.note(f"{command[0].name} without guests")
    return subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True, check=True).stdout


def memcpy(sizes):
    """MiB/s of a copy between two shared mappings, by size."""
    lines = printed(result("bench-memcpy") / "memcpy", *sizes).splitlines()
    return {int(size): float(rate) for size, rate in map(str.split, lines)}


def tables(figures):
    """The lines that a run prints."""
    for names, unit in ((BANDWIDTHS, "MiB/s"), (LATENCIES, "us, typical")):
        columns = [("memcpy", figures["memcpy"])] if names is BANDWIDTHS else []
        columns += [(f"{transport} {name}", figures[transport][name]) for transport in ("efa", "rxe") for name in names]
        sizes = sorted({size for _, values in columns for size in values if any(size in other for _, other in columns[1:])})
        rows = [(unit, *(name for name, _ in columns))]
        for size in sizes:
            rows.append((report.size_name(size), *(f"{values[size]:,.2f}" if size in values else "" for _, values in columns)))
        yield from report.columns(rows)
        yield ""


def least(one, other):
    """The least ratio of two kinds of bandwidth for large messages."""
    return min(one[size] / other[size] for size in one if size >= LARGE)


def summary(figures):
    """The last lines."""
    efa, rxe, messages = figures["efa"], figures["rxe"], figures["messages"]
    write, small, page = (messages[name] for name in ("write_1048576", "write_64", "write_4096"))
    return [
        f"rdma write / memcpy: {least(efa['write'], figures['memcpy']):.2f}",
        f"rdma write / rxe: {least(efa['write'], rxe['write']):.1f}",
        f"send rate / write rate: {efa['send'][PAGE] / efa['write'][PAGE]:.2f}",
        f"without guests, rdma write / memcpy: {write['one'] / messages['memcpy'][0]:.2f}",
        f"without guests, rdma write of 4 pairs / memcpy of 2 threads: {write['four'] / messages['memcpy'][1]:.2f}",
        f"without guests, send rate / write rate: {messages['send_4096']['one'] / page['one']:.2f}",
        f"without guests, messages of 64 bytes: {small['one']:,.0f} a second, {small['allocations']:.1f} allocations each",
        f"bystander latency under attack / alone: {messages['attacked_us'] / messages['alone_us']:.2f}",
        f"send latency / rxe: {efa['send latency'][MESSAGE] / rxe['send latency'][MESSAGE]:.2f}",
    ]


def picture(figures):
    """Returns the panels of the SVG."""
    bandwidths = {("memcpy", False): figures["memcpy"]}
    latencies = {}
    for transport in ("efa", "rxe"):
        bandwidths |= {(name, transport == "rxe"): figures[transport][name] for name in BANDWIDTHS}
        latencies |= {(name, transport == "rxe"): figures[transport][name] for name in LATENCIES}
    return [
        report.curves("MiB/s by message size; dashed: rdma_rxe", bandwidths, report.size_name),
        report.curves("Typical latency in microseconds; dashed: rdma_rxe", latencies, report.size_name),
    ]


def run(driver):
    """Runs the whole bench, and that of SRD: prints tables and summary."""
    figures = {"kernel": release(FLAVOUR), "efa": measure("efa", driver)}
    # memcpy is measured right after the EFAs, for the comparison: a host's memory bandwidth varies with the load of its neighbours.
    figures |= {"memcpy": memcpy(figures["efa"]["write"]), "rxe": measure("rxe", driver)}
    # The emulator's data path alone, beside the copies of its own memory.
    figures["messages"] = json.loads(printed(result("bench-emulator") / "examples/messages"))
    report.write("data", json.dumps(figures, indent=1) + "\n", picture(figures))
    print("On an ideal network: nothing is lost, late or limited.\n")
    print("\n".join(tables(figures)), flush=True)
    incast = srd.run()
    print("\n".join([*summary(figures), incast]), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", choices=("rust", "c"), default="rust", help="the efa module to load (default: rust)")
    run(parser.parse_args().driver)
