# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Runs the commands of the guides, each where tests/guides/commands.toml says."""

import contextlib
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from . import build, cache, guides, patience, running, suite
from .failure import Failure
from .verdict import check

DEVICES = ["profile=efa3", "profile=efa3"]
# Where the emulator's program and the folder of the commands are in the toolroot.
PROGRAMS, FOLDER = "/run/efa-rs/programs", "/run/efa-rs/guides"

# Characters of a command's output that are shown if it is wrong.
END = 2000


def title(command):
    return f"{command.place}: {' '.join(command.text.split())}"


def in_guest(flavour):
    """Runs the commands that need a device."""
    options = {"hotplug": True, "timeout": suite.LIMIT}
    tally, _ = suite.in_guest(f"guides {flavour}", "/efa-rs/tests/guides/guest.py", "rust", flavour, DEVICES, **options)
    return tally


def verdict(command, how, status, printed):
    """The tally of a command that has ended."""
    end = printed[-END:]
    problems = [f"exit status {status}: {end}"] * bool(status)
    problems += [f"the output has nothing like {how['prints']}: {end}"] * (not re.search(how.get("prints", ""), printed, re.DOTALL))
    problems += [wrong] if not problems and (wrong := guides.differs(command.output, printed)) else []
    return check(title(command), problems)


def with_lab(flavour):
    """Runs the commands for two guests that stay."""
    total = check("the guides have commands for two guests", [] if (found := guides.of_section("lab")) else ["none"])
    with tempfile.TemporaryDirectory() as folder, lab(flavour, Path(folder) / "run") as output:
        for command, how in found:
            # Without --run, a guide's command would use the set of guests that was started last.
            text = re.sub(r"tools/vm (exec|ctl)", rf"\g<0> --run {output}", command.text)
            result = subprocess.run(
                ["bash", "-c", text], cwd=cache.CLONE, capture_output=True, text=True, input="true\n", check=False, timeout=suite.LIMIT
            )
            total += verdict(command, how, result.returncode, result.stdout + result.stderr)
    return total


def outcome(command):
    """Runs a command in the clone; returns its exit status and its output."""
    result = subprocess.run(
        command, cwd=cache.CLONE, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=suite.LIMIT
    )
    return result.returncode, result.stdout + result.stderr


def with_own_guests():
    """Runs the commands that boot guests."""
    total = check("the guides have commands that boot guests", [] if (found := guides.of_section("vm")) else ["none"])
    with tempfile.TemporaryDirectory() as folder:
        for command, how in found:
            text = re.sub(r"~/[\w/]+", folder, command.text)
            total += verdict(command, how, *outcome(["bash", "-c", text]))
    return total


@contextlib.contextmanager
def lab(flavour, output):
    """Runs tools/vm lab until the end of the block."""
    command = [sys.executable, cache.CLONE / "tools/vm", "lab", "--flavour", flavour, "--cpus", "1", "--device", "profile=efa3"]
    log = output.with_suffix(".log")
    with open(log, "w") as file:
        process = subprocess.Popen([*command, "--output", output], stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:

        def ready():
            if process.poll() is not None:
                raise Failure(f"{log.read_text()}\ntools/vm lab ended before its guests could be reached: see above.")
            return (output / "agents").exists() and cache.in_use(output) and all(map(running.Running(output).answers, (0, 1)))

        patience.wait_until(ready, "the guests of tools/vm lab did not answer", interval=0.5)
        yield output
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def of_the_emulator():
    """Runs the commands of the emulator's program."""
    program = build.emulator()
    total = check("the guides have commands for the emulator", [] if (found := guides.of_section("host")) else ["none"])
    with tempfile.TemporaryDirectory() as folder:
        binds = [(program.parent, PROGRAMS, "ro"), (Path(folder), FOLDER, "rw")]
        script = Path(folder) / "run"
        for command, how in found:
            script.write_text(f"cd {FOLDER}\nexport PATH={PROGRAMS}:$PATH\n{runnable(command.text)}\n")
            total += verdict(command, how, *outcome(build.in_toolroot(["bash", f"{FOLDER}/run"], binds)))
    return total


# A device that a guide leaves out, and commands that end an emulator once it serves. Its exit status is that of the script.
DEVICE = "--device socket=/tmp/efa.sock"
SERVE = """ & emulator=$!
until [ -S efa.sock ]; do kill -0 $emulator || { wait $emulator; exit; }; sleep 0.1; done
"""
STOP = """
kill $emulator
wait $emulator
"""
# A second emulator, for a command that joins one.
LISTEN = """efa-emu --device number=1,socket=other.sock --listen 127.0.0.1:4791 & other=$!
trap 'kill $other' EXIT
until [ -S other.sock ]; do kill -0 $other || exit; sleep 0.1; done
"""
# Names in the guides, and their replacements in the run.
HERE = {"socket=PATH": "socket=efa.sock", "efa1.sock": "efa.sock", "efa2.sock": "efa.sock", "192.0.2.1": "127.0.0.1"}
FOLDERS = {"/run/efa-emu/lab/": "", "/tmp/": ""}


def runnable(text):
    """Returns the script that runs a guide's command on this host, in the folder of the run, with the parts that the guide omits."""
    if text.startswith("--"):
        text = f"efa-emu {text}"
    if text.startswith("efa-emu --fabric"):
        text += f" {DEVICE}"
    for name, here in (HERE | {"efa-emu ...": f"efa-emu {DEVICE}"}).items():
        text = text.replace(name, here)
    if text.startswith("efa-emu ctl"):
        text = f"efa-emu {DEVICE} --control {text.split()[2]}{SERVE}{text} || exit{STOP}"
    elif "--device" in text:
        text = (LISTEN if "--join" in text else "") + text.removesuffix(" &") + SERVE + STOP
    for name, here in FOLDERS.items():
        text = text.replace(name, here)
    return text
