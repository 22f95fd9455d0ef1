# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Network namespaces, and RDMA devices in them."""

import contextlib
import ctypes
import errno
import json
import os
import socket
import struct
import subprocess

from messages import Endpoint, send
from modules import SETNS, UNSHARE, syscall
from selftest import errno_name, output_of, wait_until
from uverbs import opened

CLONE_NEWNET = 0x40000000
# Name of the first namespace, which all other programs use, for the tools `ip` and `rdma`.
HERE = "efa-life-here"


def set_mode(mode):
    """Sets whether RDMA devices are visible in all namespaces, or in one. Waits until only the first namespace is left: others
    are removed some time after their names.
    """
    wait_until(lambda: "busy" not in tried("rdma", "system", "set", "netns", mode), f"{mode} network namespaces")


def tried(*command):
    """Runs a program; returns its error output."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr.strip()


# Of netlink and its header, of RDMA_NLDEV_CMD_SET and of its attributes: Linux's netlink.h and rdma_netlink.h.
NETLINK_RDMA, SET, REQUEST_ACK = 20, 5 << 10 | 2, 5
HEADER, ATTRIBUTE = struct.Struct("<IHHII"), struct.Struct("<HH")
DEV_INDEX, DEV_NAME, NET_NS_FD = 1, 2, 68


def attribute(kind, value):
    """Returns an attribute of a netlink message."""
    return ATTRIBUTE.pack(ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def change(old, name="", netns=""):
    """Renames an RDMA device of this namespace, moves it to another one, or both in one request, which `rdma` can't send.

    Returns `ok` or the name of the errno, which is ENODEV if there is no such device.
    """
    indexes = {device["ifname"]: device["ifindex"] for device in json.loads(output_of("rdma", "-j", "dev") or "[]")}
    if old not in indexes:
        return "ENODEV"
    with contextlib.ExitStack() as stack:
        request = attribute(DEV_INDEX, struct.pack("<I", indexes[old]))
        if name:
            request += attribute(DEV_NAME, name.encode() + b"\0")
        if netns:
            file = stack.enter_context(open(f"/run/netns/{netns}"))
            request += attribute(NET_NS_FD, struct.pack("<I", file.fileno()))
        link = stack.enter_context(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_RDMA))
        link.send(HEADER.pack(HEADER.size + len(request), SET, REQUEST_ACK, 1, 0) + request)
        (error,) = struct.unpack_from("<i", link.recv(4096), HEADER.size)
    # The device has been unregistered since its index was read.
    return {0: "ok", -errno.EINVAL: "ENODEV"}.get(error) or errno_name(-error)


def names_for_this():
    """Names the first namespace, so that devices can be moved back."""
    output_of("ip", "netns", "attach", HERE, str(os.getpid()))


class Elsewhere:
    """A process in a separate network namespace."""

    NAME = "efa-life-elsewhere"

    def __init__(self):
        syscall(UNSHARE, ctypes.c_ulong(CLONE_NEWNET))
        output_of("ip", "netns", "attach", self.NAME, str(os.getpid()))
        self.seed = 0

    def ready(self):
        """Returns when the namespace exists."""

    def use(self, device):
        """Uses a device that was moved here: opens it and sends a message to itself."""
        wait_until(device.has_file, "the device's file")
        self.seed += 1
        with Endpoint(opened(device)) as endpoint:
            send(endpoint, endpoint, device.gid, self.seed)

    def change(self, *arguments):
        return change(*arguments)

    def give_back(self, name):
        """Moves a device to the first namespace."""
        output_of("rdma", "dev", "set", name, "netns", HERE)

    def end_namespace(self, device=None):
        """Ends this namespace by going to the first one, with a DEVICE of this one open."""
        self.context = device and opened(device)
        with open(f"/run/netns/{HERE}") as here:
            syscall(SETNS, here.fileno(), CLONE_NEWNET)
        output_of("ip", "netns", "delete", self.NAME)

    def leave(self, name):
        """Moves the device back, if it is here, and deletes the names of both namespaces."""
        if os.path.exists(f"/run/netns/{self.NAME}"):
            for device in json.loads(output_of("rdma", "-j", "dev") or "[]"):
                change(device["ifname"], name, HERE)
            output_of("ip", "netns", "delete", self.NAME)
        output_of("ip", "netns", "delete", HERE)
