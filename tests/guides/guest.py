#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The commands of the guides that need a device run in a guest, while this program holds objects of that."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "kselftest"), str(Path(__file__).resolve().parents[2] / "tools" / "lib")]

import selftest
from efa_tools import guides
from objects import CQ_WITH_COMPLETION_CHANNEL, QPT_UD, AddressHandle, CompletionChannel, CompletionQueue, Memory, MemoryRegion, QueuePair
from patience import PATIENCE, Failed, wait_until
from selftest import Suite, any_function, equal
from uverbs import opened

main = any_function()
suite = Suite()
FOLDER = "/run/efa-guides"
# The port that the program `emu` needs, and the tools as if they were installed.
TOOLS = {"PATH": f"{guides.CLONE}/tools:{os.environ['PATH']}", "TMPDIR": FOLDER}
os.makedirs(FOLDER, exist_ok=True)
# What guides call the device, as this guest has it. The second device is never touched.
ADDRESSES = ("BDF", "0000:00:06.0", "0000:00:04.0")
NAMES = ("DEV", "rdmap0s6")


# The names that the RDMA device has had: another network namespace may have it.
seen = main.names("infiniband")


def name():
    """The RDMA device's name, or the last one that it had."""
    seen.extend(main.names("infiniband"))
    return seen[-1]


def here(text):
    """A guide's text with the names of this guest."""
    text = text.replace("devices/.../", f"devices/{main.address}/")
    for place in ADDRESSES:
        text = text.replace(place, main.address)
    for place in NAMES:
        text = text.replace(place, name())
    return text.replace("netns NAME", "netns job").replace("netns add NAME", "netns add job").replace("delete NAME", "delete job")


@contextlib.contextmanager
def objects():
    """A device with a queue pair of each type, a completion queue, a memory region and an address handle, if it can be opened."""
    # Another network namespace may have it.
    if not (main.names("infiniband") and main.names("infiniband_verbs")):
        yield None
        return
    main.settle()
    name()
    with opened(main) as context, contextlib.closing(Memory(4096)) as memory, contextlib.closing(CompletionChannel(context)) as channel:
        pd, cq = context.alloc_pd()[0], CompletionQueue(context, flags=CQ_WITH_COMPLETION_CHANNEL, channel=channel.fd)
        pairs = [QueuePair(context, pd, cq.handle, cq.handle), QueuePair(context, pd, cq.handle, cq.handle, qp_type=QPT_UD)]
        MemoryRegion(context, pd, memory.address, memory.length)
        AddressHandle(context, pd)
        yield {"qp": pairs[0].qpn, "rq": pairs[0].qpn, "cq": cq.response.cq_idx}


def with_numbers(request, numbers):
    """A request about the queues that this program has."""
    return re.sub(r'"(qp|rq|cq)":\d+', lambda found: f'"{found[1]}":{numbers[found[1]]}' if numbers else found[0], request)


def run(text, prints="", meanwhile=""):
    """Runs a command of a shell and returns what it prints; fails if its exit status is an error's."""
    if text.startswith(guides.REQUEST):
        reply = selftest.emulator.ask(text)
        if not reply.startswith('{"ok"'):
            raise Failed(f"the reply is {reply}")
        return reply
    # Others have the control port meanwhile.
    selftest.emulator.close()
    try:
        if meanwhile:
            return run_until(text, prints, meanwhile)
        folder = guides.CLONE / "tests/kselftest" if text.startswith("./") else FOLDER
        result = subprocess.run(
            ["bash", "-c", text], cwd=folder, env=os.environ | TOOLS, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    finally:
        selftest.emulator.open()
    equal(result.returncode, 0, f"exit status of {text}, which says {result.stdout}{result.stderr}")
    return result.stdout


def run_until(text, prints, meanwhile):
    """Runs a command that does not end by itself until it has printed what is wanted, and MEANWHILE another one, again and again."""
    printed, over = "", threading.Event()

    def repeat():
        while not over.is_set():
            subprocess.run(["bash", "-c", meanwhile], stdout=subprocess.DEVNULL, check=False)

    with subprocess.Popen(["bash", "-c", text], stdout=subprocess.PIPE, text=True, start_new_session=True) as process:

        def end():
            os.killpg(process.pid, signal.SIGKILL)

        limit = threading.Timer(PATIENCE, end)
        other = threading.Thread(target=repeat)
        limit.start()
        other.start()
        for line in process.stdout or ():
            printed += line
            if re.search(prints, printed):
                break
        limit.cancel()
        over.set()
        other.join()
        end()
    return printed


def restore():
    """The device is in use again, whatever a command has done to it, unless it was unbound on purpose."""
    main.clear()
    selftest.emulator.send({"command": "fabric", "set": {"loss": 0, "flip": 0, "jitter_us": 0, "delay_us": 0, "path": []}})
    if not main.is_bound:
        return
    if main.status()["state"] == "failed":
        (main.sysfs / "reset").write_text("1")
    wait_until(lambda: main.status()["state"] == "up", "the device is up")


def attempt(command, how):
    """Runs a command, and compares what it prints with what the guide shows."""
    if how.get("before"):
        run(here(how["before"]))
    with objects() as numbers:
        text = here(command.text)
        if how.get("during"):
            run(here(how["during"]))
        if text.startswith(guides.REQUEST):
            text = with_numbers(text, numbers)
        prints = here(how.get("prints", ""))
        printed = run(text, prints, here(how.get("meanwhile", "")))
        if not re.search(prints, printed, re.DOTALL):
            raise Failed(f"{command.text} prints nothing like {prints}: {printed}")
        if differs := guides.differs([here(line) for line in command.output], printed):
            raise Failed(f"{command.place} shows another output than that of {command.text}: {differs}")
    if how.get("after"):
        run(here(how["after"]))
    if not how.get("keep"):
        restore()


for found, means in guides.of_section("guest"):
    # A test's name has no #.
    title = " ".join(f"{found.place}: {found.text}".replace("#", "").replace("|", "/").split())
    suite.add(title, lambda found=found, means=means: attempt(found, means), needs_emulator=False)
try:
    suite.run()
finally:
    shutil.rmtree(FOLDER, ignore_errors=True)
