#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Runs the guides' commands that need a device in a guest, while this program holds objects of the device.

usage: guest.py FILE: a list of [place, command, how], of which tests/guides/commands.toml has the last.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

CLONE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CLONE / "tests/kselftest"))

import selftest
from objects import CQ_WITH_COMPLETION_CHANNEL, QPT_UD, AddressHandle, CompletionChannel, CompletionQueue, Memory, MemoryRegion, QueuePair
from patience import PATIENCE, Failed, wait_until
from selftest import Suite, any_function, equal, result_of
from uverbs import opened

main = any_function()
suite = Suite()
FOLDER = "/run/efa-guides"
# The tools as if they were installed, and a folder for temporary files.
TOOLS = {"PATH": f"{CLONE}/dkms:{CLONE}/tools:{os.environ['PATH']}", "TMPDIR": FOLDER}
REQUEST = '{"command":'
os.makedirs(FOLDER, exist_ok=True)
# Names of the device in the guides, which are replaced by those in this guest. The second device is never used.
ADDRESSES = ("BDF", "0000:00:06.0", "0000:00:04.0")
NAMES = ("DEV", "rdmap0s6")


# The names that the RDMA device has had, as it may be in another network namespace.
seen = main.names("infiniband")


def name():
    """Returns the RDMA device's name, or its last name."""
    seen.extend(main.names("infiniband"))
    return seen[-1]


def here(text):
    """Returns a guide's text with the names in this guest."""
    text = text.replace("devices/.../", f"devices/{main.address}/")
    for place in ADDRESSES:
        text = text.replace(place, main.address)
    for place in NAMES:
        text = text.replace(place, name())
    return text.replace("netns NAME", "netns job").replace("netns add NAME", "netns add job").replace("delete NAME", "delete job")


@contextlib.contextmanager
def objects():
    """Creates a queue pair of each type, a completion queue, a memory region and an address handle, if the device can be opened."""
    # The device may be in another network namespace.
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
    """Returns a request with the numbers of this program's queues."""
    return re.sub(r'"(qp|rq|cq)":\d+', lambda found: f'"{found[1]}":{numbers[found[1]]}' if numbers else found[0], request)


def run(text, prints="", meanwhile=""):
    """Runs a shell command and returns its output; fails unless its exit status is 0."""
    if text.startswith(REQUEST):
        reply = selftest.emulator.ask(text)
        if not reply.startswith('{"ok"'):
            raise Failed(f"the reply is {reply}")
        return reply
    # The command may open the control port, which can be open only once.
    selftest.emulator.close()
    try:
        if meanwhile:
            return run_until(text, prints, meanwhile)
        folder = CLONE / "tests/kselftest" if text.startswith("./") else FOLDER
        result = subprocess.run(
            ["bash", "-c", text], cwd=folder, env=os.environ | TOOLS, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    finally:
        selftest.emulator.open()
    equal(result.returncode, 0, f"exit status of {text}, with the output {result.stdout}{result.stderr}")
    return result.stdout


def run_until(text, prints, meanwhile):
    """Runs an endless command until its output matches `prints`, and repeats the command `meanwhile` at the same time."""
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


def state():
    """Returns the driver's state of the device, or None while the driver binds or unbinds it."""
    with contextlib.suppress(FileNotFoundError):
        return main.status()["state"]
    return None


def works():
    """Whether a program can use the device. Resets a device that the driver has given up."""
    if state() == "failed":
        (main.sysfs / "reset").write_text("1")
    # A failure that the driver has not detected yet makes a command fail.
    return main.names("infiniband_verbs") and result_of(lambda: opened(main).close()) == "ok"


def restore():
    """Restores the network and the device after a command, unless the device was unbound on purpose."""
    main.clear()
    selftest.emulator.send({"command": "fabric", "set": {"loss": 0, "flip": 0, "jitter_us": 0, "delay_us": 0, "path": []}})
    if main.is_bound:
        wait_until(works, "the device can be used")


def attempt(command, how):
    """Runs a command, and the commands around it."""
    if how.get("before"):
        run(here(how["before"]))
    with objects() as numbers:
        text = here(command)
        if how.get("during"):
            run(here(how["during"]))
        if text.startswith(REQUEST):
            text = with_numbers(text, numbers)
        prints = here(how.get("prints", ""))
        printed = run(text, prints, here(how.get("meanwhile", "")))
        if not re.search(prints, printed, re.DOTALL):
            raise Failed(f"{command} prints nothing like {prints}: {printed}")
    if how.get("after"):
        run(here(how["after"]))
    if not how.get("keep"):
        restore()


for place, command, how in json.loads(Path(sys.argv[1]).read_text()):
    # A test's name can't contain #.
    title = " ".join(f"{place}: {command}".replace("#", "").replace("|", "/").split())
    suite.add(title, lambda command=command, how=how: attempt(command, how), needs_emulator=False)
try:
    suite.run()
finally:
    shutil.rmtree(FOLDER, ignore_errors=True)
