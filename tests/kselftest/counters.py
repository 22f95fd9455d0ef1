#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Hardware counters. Monitoring tools rely on their names."""

import contextlib
import time

from recovery import Recovery
from selftest import DRIVER, TICK, Skipped, Suite, any_function, emulator, equal, output_of, wait_until

DEVICE_NAMES = (
    "alloc_pd_err alloc_ucontext_err cmds_err completed_cmds create_ah_err create_cq_err create_qp_err keep_alive_rcvd mmap_err"
    " no_completion_cmds reg_mr_err submitted_cmds"
).split()
KERNEL_VERBS_NAMES = ("alloc_mr_err", "get_dma_mr_err")
PORT_NAMES = (
    "impaired_remote_conn_events rdma_read_bytes rdma_read_resp_bytes rdma_read_wr_err rdma_read_wrs rdma_write_bytes"
    " rdma_write_recv_bytes rdma_write_wr_err rdma_write_wrs recv_bytes recv_wrs retrans_bytes retrans_pkts retrans_timeout_events"
    " rx_bytes rx_drops rx_pkts send_bytes send_wrs tx_bytes tx_pkts unresponsive_remote_events"
).split()
TYPES = ("BASIC", "MESSAGES", "RDMA_READ", "RDMA_WRITE", "NETWORK")
# If a device lacks some statistics, the driver passes none to the core, and sysfs has none.
PORTS = {"profile=efa0": [], "profile=efa1": [], "profile=efa3": PORT_NAMES, "profile=efa4": PORT_NAMES}

# Lifespans of cached counters in ms: the default, which the kernel rounds up to its ticks; no caching; and the maximum.
USUAL, NOT_AT_ALL, LONGEST = range(10, 21), 0, 10000

suite = Suite()
main = any_function()


def after():
    if emulator:
        main.clear()


# Names, lifespans and formats.


def device_folder():
    return main.rdma / "hw_counters"


def port_folder(function=main):
    return function.port / "hw_counters"


def names(folder):
    """Returns the names of the counters in a folder."""
    return sorted(file.name for file in folder.glob("*") if file.name != "lifespan")


@contextlib.contextmanager
def cached_for(folder, ms):
    """Sets the lifespan of cached counters within the block."""
    file = folder / "lifespan"
    usual = file.read_text()
    file.write_text(str(ms))
    # Values that were read in this tick stay cached, whatever the lifespan.
    time.sleep(TICK)
    try:
        yield
    finally:
        file.write_text(usual)


def read_all(folder):
    """Reads each counter of a folder, and fails if one is no number."""
    for name in names(folder):
        text = (folder / name).read_text().removesuffix("\n")
        equal(text.isdecimal(), True, f"{name} is a number: {text}")


def is_reset(name):
    return name.startswith("resets")


def is_for_kernel_verbs(name):
    return name in KERNEL_VERBS_NAMES


@suite.case("names of the device's counters", needs_emulator=False)
def device_names():
    equal([name for name in names(device_folder()) if not (is_reset(name) or is_for_kernel_verbs(name))], DEVICE_NAMES, "names")


for what, belongs in (("resets", is_reset), ("kernel verbs", is_for_kernel_verbs)):
    suite.add(f"counters of {what}", lambda belongs=belongs: " ".join(filter(belongs, names(device_folder()))), needs_emulator=False)
suite.add("names of the port's counters", lambda: equal(names(port_folder()), PORT_NAMES, "names"), needs_emulator=False)
for place, folder in (("device", device_folder), ("port", port_folder)):

    def lifespan(folder=folder):
        ms = int((folder() / "lifespan").read_text())
        equal(ms in USUAL, True, f"{ms} ms is usual")

    suite.add(f"lifespan of the {place}'s counters", lifespan, needs_emulator=False)
    suite.add(f"the {place}'s counters can be read", lambda folder=folder: read_all(folder()), needs_emulator=False)


# Values of counters, and commands that reads of them take.


def commands():
    """Returns the number of commands that the device has received so far."""
    return main.state()["admin"]["submitted"]


@suite.case("all commands are completed", needs_emulator=False)
def completed():
    equal(main.counter("completed_cmds"), main.counter("submitted_cmds"), "completed commands")


@suite.case("a read of the port's counters takes five commands", "5")
def five_commands():
    before = commands()
    main.counter("tx_bytes", port=True)
    return commands() - before


@suite.case("the driver counts commands as the device does")
def commands_are_counted():
    counted, seen = main.counter("submitted_cmds"), commands()
    main.counter("rx_pkts", port=True)
    equal(main.counter("submitted_cmds") - counted, commands() - seen, "new commands")


@suite.case("counters are not read again within their lifespan", "0")
def cached():
    def command_of_a_round():
        (port_folder() / "tx_bytes").read_text()
        before = commands()
        read_all(port_folder())
        return commands() - before

    with cached_for(port_folder(), LONGEST):
        # If the machine stalls for longer than the lifespan, a round takes commands, but the next one does not.
        wait_until(lambda: command_of_a_round() == 0, "a round of reads takes no command")
    return 0


@suite.case("the device's counters take no command", "0")
def no_command():
    with cached_for(device_folder(), NOT_AT_ALL):
        before = commands()
        read_all(device_folder())
        return commands() - before


for kind in TYPES:

    def refused(kind=kind):
        sent, before = main.counter("tx_bytes", port=True), main.counter("cmds_err")
        main.inject({"opcode": "GET_STATS", "stats": kind}, {"status": "UNKNOWN_ERROR"})
        result = f"{main.counter('tx_bytes', port=True)}, errors {main.counter('cmds_err') - before}"
        main.clear()
        equal(main.counter("tx_bytes", port=True), sent, "the counter without a fault")
        return result

    suite.add(f"GET_STATS {kind} fails", refused, "EINVAL, errors 1")


@suite.case("rdma statistic shows the port's counters", needs_emulator=False)
def statistic():
    shown = output_of("rdma", "statistic", "show", "link", f"{main.rdma.name}/1").split()
    equal([name for name in (PORT_NAMES if emulator else ["tx_bytes"]) if name not in shown], [], "missing counters")


@suite.case("counters of commands continue after a reset")
def counters_continue():
    if DRIVER == "c":
        raise Skipped("the C driver resets no device that is in use")
    before = main.counter("submitted_cmds")
    recovery = Recovery(main, "fatal_error")
    main.event("FATAL_ERROR")
    recovery.wait()
    equal(main.counter("submitted_cmds") > before, True, "that more commands are counted than before")


@suite.case("a new probe starts at zero")
def new_probe():
    main.rebind()
    main.settle()
    count = main.counter("submitted_cmds")
    equal(0 < count < 50, True, f"that {count} commands are those of one probe")


for spec, wanted in PORTS.items():
    suite.add_for(spec, "the port's counters", lambda function, wanted=wanted: equal(names(port_folder(function)), wanted, "names"))
if emulator:
    # The driver probes the device with its default attributes.
    main.rebind()
main.settle()
suite.run(after=after)
