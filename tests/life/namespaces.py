# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Network namespaces, and RDMA devices in them."""

import ctypes
import os
import subprocess

from messages import Endpoint, send
from modules import UNSHARE, syscall
from selftest import Failed, wait_until
from timing import now
from uverbs import opened

CLONE_NEWNET = 0x40000000
# Name of the first namespace, which all other programs use, for the tools `ip` and `rdma`.
HERE = "efa-life-here"


def run(*command):
    """Runs a program and returns its output; fails with its error output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def set_mode(mode):
    """Sets whether RDMA devices are visible in all namespaces, or in one. Waits until only the first namespace is left: others
    are removed some time after their names.
    """
    wait_until(lambda: "busy" not in tried("rdma", "system", "set", "netns", mode), f"{mode} network namespaces")


def tried(*command):
    """Runs a program; returns its error output."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr.strip()


def names_for_this():
    """Names the first namespace, so that devices can be moved back."""
    run("ip", "netns", "attach", HERE, str(os.getpid()))


class Elsewhere:
    """A process in a separate network namespace."""

    NAME = "efa-life-elsewhere"

    def __init__(self):
        syscall(UNSHARE, ctypes.c_ulong(CLONE_NEWNET))
        run("ip", "netns", "attach", self.NAME, str(os.getpid()))
        self.seed = 0

    def ready(self):
        """Returns when the namespace exists."""

    def use(self, device):
        """Uses a device that was moved here: opens it and sends a message to itself; returns the time of success."""
        wait_until(device.has_file, "the device's file")
        self.seed += 1
        with Endpoint(opened(device)) as endpoint:
            send(endpoint, endpoint, device.gid, self.seed)
        return now()

    def give_back(self, name):
        """Moves a device to the first namespace."""
        run("rdma", "dev", "set", name, "netns", HERE)

    def leave(self, name):
        """Moves the device back, if it is here, and deletes the names of both namespaces."""
        if name in run("rdma", "dev"):
            self.give_back(name)
        run("ip", "netns", "delete", self.NAME)
        run("ip", "netns", "delete", HERE)
