# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Programs that move data between guests, fi_pingpong and perftest with their figures, and the networks between the devices."""

import contextlib
import itertools
import re
import subprocess
import time

from guests import LOST, PATIENCE, GuestFailed, ProgramFailed, wait_until

# Each run has a port of its own, as the previous run's port may not be free yet.
PORTS = itertools.count(18600)
# Timeout of a program in seconds: several times the duration on a busy host.
LIMIT = 900

# Networks, as settings of the emulator that differ from those at its start. Each bad one has a single defect. Packets overtake each other
# if their delays differ by up to jitter_us. A path that is down loses packets, too.
FEW_PATHS = {"paths": 4, "delay_us": 0, "jitter_us": 0}
GOOD, WRONG_BITS = "good network", {**FEW_PATHS, "flip": 1}
NETWORKS: dict[str, dict] = {
    GOOD: {},
    "1 % loss": {**FEW_PATHS, "loss": 0.01},
    "reordering": {**FEW_PATHS, "jitter_us": 200},
    "one of four paths down": {**FEW_PATHS, "path": [{"down": True}]},
}
LOSS_AND_REORDERING = {**FEW_PATHS, "loss": 0.01, "jitter_us": 200}

# perftest's row of a size. A standard deviation can be -nan, if one time is much longer than the others.
ROW = re.compile(r"^[ \t]*(\d+)((?:[ \t]+(?:\d+(?:\.\d+)?|-?nan|inf)){3,})[ \t]*$", re.MULTILINE)
# perftest's line, maybe directly behind a row, if it could not measure the frequency of its clock before that row. An emulated CPU may
# stall between the reads of two clocks. The row has zeros or infinities then.
NO_CLOCK = re.compile(r"Correlation coefficient r\^2: .*")
CLOCK_TRIES = 5
# Indices of a row's values, after the size: the third is a mean, the fourth a typical latency or a rate of messages.
ITERATIONS, AVERAGE, TYPICAL = 0, 2, 3
SRD, UD = "-c SRD -x 0", "-c UD -x 0"

# libfabric's endpoints. All data has to pass through the device.
EFA, DIRECT, DGRAM = "-e rdm -f efa", "-e rdm -f efa-direct", "-e dgram"
LIBFABRIC = "FI_EFA_ENABLE_SHM_TRANSFER=0"
# fi_pingpong's row of a size: numbers of sent and of acknowledged messages, with a sign if they are equal.
PINGPONG = re.compile(r"^\d+[kmg]?\s+(\d+)\s+(=?\d+)\s.*?(\S+)\s+\S+$", re.MULTILINE)


class Program:
    """A program in a guest. Its output is a file in the run's folder."""

    numbers = itertools.count()

    def __init__(self, guests, guest, command):
        self.guests, self.guest, self.command = guests, guest, command
        self.file = guests.folder / f"program{next(self.numbers)}.log"
        with self.file.open("w") as output:
            self.process = guests.popen(f"echo $$ >/run/{self.file.name}; exec {command}", guest, stdout=output, stderr=subprocess.STDOUT)

    @property
    def output(self):
        # perftest prints zero bytes.
        return self.file.read_text(errors="replace").replace("\0", "")

    @property
    def status(self):
        return self.process.poll()

    def await_port(self, port):
        """Waits until the program listens."""

        def listens():
            return self.status is not None or self.guests.tried(f"ss -Hltn 'sport = :{port}'", self.guest).stdout

        wait_until(listens, f"guest {self.guest} listens: {self.command}", PATIENCE * self.guests.slow)
        if self.status is not None:
            raise ProgramFailed(self.account(), subprocess.CompletedProcess(self.command, self.status, self.output))

    def account(self):
        """Returns the command, its status and the end of its output, for the text of a failure."""
        end = "still runs" if self.status is None else f"exit status {self.status}"
        return "\n".join([f"guest {self.guest}: {self.command}: {end}", *(f"  | {line}" for line in self.output.splitlines()[-40:])])

    def kill(self):
        if self.status is None:
            self.guests.tried(f"kill -KILL $(cat /run/{self.file.name})", self.guest)
            self.process.wait(PATIENCE * self.guests.slow)


def finish(*programs, limit=LIMIT):
    """Waits for programs to end; fails with the output of all of them unless all succeed. Returns the output of the first one."""
    guests, hung = programs[0].guests, ""

    def failed():
        return any(program.status for program in programs)

    def ended():
        return all(program.status is not None for program in programs)

    try:
        wait_until(lambda: failed() or ended(), "the end of the programs", limit * guests.slow)
        if not ended():
            # The others may print the reason in this time. Nothing depends on that.
            time.sleep(1)
    except GuestFailed as failure:
        hung = str(failure)
    accounts = "\n".join([hung, *(program.account() for program in programs)])
    for program in programs:
        if program.status == LOST:
            guests.check_processes()
            guests.check_console(program.guest)
        program.kill()
    if hung or failed():
        raise ProgramFailed(accounts, subprocess.CompletedProcess(programs[0].command, programs[0].status or 1, programs[0].output))
    return programs[0].output


def pair(guests, server, client, port):
    """Runs a server in guest 1 and then its client in guest 0; returns the client's output. Both have to succeed."""
    serving = Program(guests, 1, server)
    serving.await_port(port)
    return finish(Program(guests, 0, client), serving)


def tried(run, *arguments, **options):
    """Calls pair() or another function that runs programs; returns the output and the status of the first one."""
    try:
        return subprocess.CompletedProcess("", 0, run(*arguments, **options))
    except ProgramFailed as failure:
        return subprocess.CompletedProcess("", failure.status, failure.output)


@contextlib.contextmanager
def network(guests, settings):
    """Applies settings to the network between the devices."""
    before = guests.control({"command": "fabric"})["settings"]
    guests.control({"command": "fabric", "set": settings})
    try:
        yield
    finally:
        guests.control({"command": "fabric", "set": before})


def left_behind(guests, *but):
    """Waits until no device has objects, but for event queues and others that the kernel keeps; fails if one saw a protocol error."""
    for number in range(len(guests.control({"command": "devices"}))):

        def left(number=number):
            held = guests.control({"command": "state", "device": number})["resources"]
            return {kind for kind, count in held.items() if count} - {"eq", *but}

        # A program that was killed because its test had failed, as with wrong bits, may not have ended yet.
        wait_until(lambda left=left: not left(), f"device {number} has no objects")
        errors = guests.control({"command": "state", "device": number})["protocol_errors"]
        assert not errors, f"device {number} saw {errors} errors that a correct driver never makes"


def pingpong(guests, options, iterations=20, environment=""):
    """Runs fi_pingpong, which checks contents; returns the client's output, and the mean of the microseconds for a message."""
    port = next(PORTS)
    command = f"env {LIBFABRIC} {environment} fi_pingpong -p efa -c -I {iterations} {options}"
    said = pair(guests, f"{command} -B {port}", f"{command} -P {port} guest1", port)
    rows = PINGPONG.findall(said)
    assert rows and all(row[:2] == (str(iterations), f"={iterations}") for row in rows), f"fi_pingpong printed\n{said}"
    return said, float(rows[-1][2])


def rows(said):
    """Returns the values of each message size in perftest's table."""
    _, _, table = NO_CLOCK.sub("", said).partition("#bytes")
    return {int(size): [float(value) for value in values.split()] for size, values in ROW.findall(table)}


def device(guests):
    """Returns the name of the first RDMA device, which is the same in all guests."""
    return guests.run("ls /sys/class/infiniband").split()[0]


def perftest(guests, command):
    """Runs a program of perftest with its options; returns the client's output."""
    port = next(PORTS)
    program, _, options = command.partition(" ")
    command = f"{program} -d {device(guests)} -F -p {port} {options}"
    return pair(guests, command, f"{command} guest1", port)


def measure(guests, command):
    """Runs a program of perftest until it could measure its clock; returns its output and rows."""
    said = ""
    for _ in range(CLOCK_TRIES):
        said = perftest(guests, command)
        if not NO_CLOCK.search(said) and (found := rows(said)):
            return said, found
    raise AssertionError(f"{command} had no clock or no result in {CLOCK_TRIES} runs:\n{said}")
