#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Hardware counters. Monitoring tools rely on their names."""

import contextlib
import functools
import shutil
import subprocess
import time

from recovery import Recovery
from selftest import DRIVER, TICK, Skipped, Suite, any_function, emulator, equal, function_with, wait_until

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


def resets():
    return [name for name in names(device_folder()) if name.startswith("resets")]


def lifespan(folder):
    return int((folder / "lifespan").read_text())


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


@suite.case("names of the device's counters", needs_emulator=False)
def device_names():
    others = [name for name in names(device_folder()) if name not in (*resets(), *KERNEL_VERBS_NAMES)]
    equal(others, DEVICE_NAMES, "names")


@suite.case("counters of resets", needs_emulator=False)
def reset_names():
    return " ".join(resets())


@suite.case("counters of kernel verbs", needs_emulator=False)
def kernel_verbs_names():
    return " ".join(name for name in names(device_folder()) if name in KERNEL_VERBS_NAMES)


@suite.case("names of the port's counters", needs_emulator=False)
def port_names():
    equal(names(port_folder()), PORT_NAMES, "names")


@suite.case("lifespan of the device's counters", needs_emulator=False)
def device_lifespan():
    equal(lifespan(device_folder()) in USUAL, True, f"{lifespan(device_folder())} ms is usual")


@suite.case("lifespan of the port's counters", needs_emulator=False)
def port_lifespan():
    equal(lifespan(port_folder()) in USUAL, True, f"{lifespan(port_folder())} ms is usual")


@suite.case("the device's counters can be read", needs_emulator=False)
def read_device():
    read_all(device_folder())


@suite.case("the port's counters can be read", needs_emulator=False)
def read_port():
    read_all(port_folder())


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


def add_refusals():
    for kind in TYPES:

        def run(kind=kind):
            sent, before = main.counter("tx_bytes", port=True), main.counter("cmds_err")
            main.inject({"opcode": "GET_STATS", "stats": kind}, {"status": "UNKNOWN_ERROR"})
            result = f"{main.counter('tx_bytes', port=True)}, errors {main.counter('cmds_err') - before}"
            main.clear()
            equal(main.counter("tx_bytes", port=True), sent, "the counter without a fault")
            return result

        suite.add(f"GET_STATS {kind} fails", run, "EINVAL, errors 1")


add_refusals()


@suite.case("a failed command is counted", "1")
def failed_command():
    before = main.counter("cmds_err")
    main.inject({"opcode": "GET_STATS", "stats": "BASIC"}, {"status": "RESOURCE_BUSY"})
    main.counter("tx_bytes", port=True)
    return main.counter("cmds_err") - before


@suite.case("a keep-alive event is counted", "1")
def keep_alive():
    # Disables periodic keep-alives.
    main.set(keep_alive_ms=0)
    main.rebind()
    main.settle()
    equal(main.counter("keep_alive_rcvd"), 0, "keep-alive events of a new session")
    main.event("KEEP_ALIVE")
    wait_until(lambda: main.counter("keep_alive_rcvd"), "the event is counted")
    return main.counter("keep_alive_rcvd")


@suite.case("rdma statistic shows the port's counters", needs_emulator=False)
def statistic():
    if not shutil.which("rdma"):
        raise Skipped("needs the program rdma")
    command = ["rdma", "statistic", "show", "link", f"{main.rdma.name}/1"]
    shown = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout.split()
    equal([name for name in (PORT_NAMES if emulator else ["tx_bytes"]) if name not in shown], [], "missing counters")


# Counters after resets and probes.


def reset_counts():
    """Returns the nonzero counters of resets."""
    counts = {name: main.counter(name) for name in resets()}
    return " ".join(f"{name} {count}" for name, count in counts.items() if count) or "none"


@functools.cache
def after_a_reset():
    """Returns the counters of resets before and after the driver resets the device, and the increase of the counter of commands."""
    if DRIVER == "c":
        raise Skipped("the C driver resets no device that is in use")
    counts, commands = reset_counts(), main.counter("submitted_cmds")
    recovery = Recovery(main, "fatal_error")
    main.event("FATAL_ERROR")
    recovery.wait()
    return f"{counts}, then {reset_counts()}", main.counter("submitted_cmds") - commands


@suite.case("a reset is counted, with its reason", "none, then resets 1 resets_fatal_error 1")
def reset():
    return after_a_reset()[0]


@suite.case("other counters continue after a reset")
def counters_continue():
    equal(after_a_reset()[1] > 0, True, "that more commands are counted than before")


@suite.case("a new probe starts at zero")
def new_probe():
    main.rebind()
    main.settle()
    count = main.counter("submitted_cmds")
    equal(0 < count < 50, True, f"that {count} commands are those of one probe")


def add_ports():
    for spec, wanted in PORTS.items():

        def run(spec=spec, wanted=wanted):
            function = function_with(spec)
            if not function:
                raise Skipped("there is no such device")
            equal(names(port_folder(function)), wanted, "names")

        suite.add(f"{spec.removeprefix('profile=')}: the port's counters", run)


add_ports()
if emulator:
    # The driver probes the device with its default attributes.
    main.rebind()
main.settle()
suite.run(after=after)
