#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Tests of the provider of samples/null_rdma: its interface to programs, and its removal. usage: null_rdma.py null_rdma.ko"""

import json
import os
import select
import struct
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "kselftest"))

from selftest import Failed, Suite, equal, result_of, udev_settles, wait_until
from uverbs import QUERY_DEVICE_LIMITS, QUERY_DEVICE_SIZE, Context

MODULE = sys.argv[1]
PARENT = Path("/sys/devices/faux/null_rdma")
LOADED = Path("/sys/module/null_rdma")
MAX_PD = 4
DEVICE_FATAL = 8

suite = Suite()


def run(*command):
    """Runs a program; returns its output."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise Failed(f"{' '.join(command)}: exit status {result.returncode}: {result.stderr.strip()}")
    return result.stdout


def remove_under(context):
    """Removes the module while a program has its device open. The removal must not wait for the program to close it."""
    with subprocess.Popen(["rmmod", "null_rdma"]) as process:
        try:
            wait_until(lambda: process.poll() is not None, "the end of rmmod while the device is open")
        except Failed:
            # Ends rmmod's wait.
            context.close()
            raise
    equal(process.returncode, 0, "exit status of rmmod")


def before():
    run("insmod", MODULE)
    udev_settles()


def after():
    if LOADED.exists():
        run("rmmod", "null_rdma")
    equal(PARENT.exists(), False, "whether the faux device is there")


def opened():
    """Opens the device and creates a context."""
    (name,) = os.listdir(PARENT / "infiniband_verbs")
    wait_until(lambda: os.path.exists(f"/dev/infiniband/{name}"), name)
    context = Context(f"/dev/infiniband/{name}")
    context.get_context(request=b"", out_size=0)
    return context


@suite.case("rdma dev shows it", needs_emulator=False)
def shown():
    (name,) = os.listdir(PARENT / "infiniband")
    (device,) = [device for device in json.loads(run("rdma", "-j", "dev")) if device["ifname"] == name]
    equal((device["node_guid"], device["fw"]), ("0200:0000:0000:0001", "none"), "GUID and firmware")
    (link,) = [link for link in json.loads(run("rdma", "-j", "link")) if link["ifname"] == name]
    equal((link["port"], link["state"], link["physical_state"]), (1, "ACTIVE", "LINK_UP"), "link")
    equal((PARENT / "infiniband" / name / "ports/1/gids/0").read_text(), "fe80:0000:0000:0000:0000:0000:0000:0001\n", "GID")


@suite.case("it answers queries", needs_emulator=False)
def queries():
    with opened() as context:
        response = context.extended(1, bytes(8), QUERY_DEVICE_SIZE)
        limits = QUERY_DEVICE_LIMITS.unpack_from(response)
        # max_pd, phys_port_cnt.
        equal((limits[16], limits[39]), (MAX_PD, 1), "limits")
        # max_msg_sz, gid_tbl_len, pkey_tbl_len.
        port = struct.unpack_from("<IIIIIH", context.query_port(1))
        equal((port[1], port[4], port[5]), (4096, 1, 0), "port")


@suite.case("protection domains have numbers", needs_emulator=False)
def domains():
    with opened() as context, opened() as other:
        allocated = [context.alloc_pd(out_size=4) for _ in range(MAX_PD)]
        equal([struct.unpack("<I", number)[0] for _, number in allocated], list(range(MAX_PD)), "numbers")
        equal(result_of(other.alloc_pd), "ENOMEM", "one more")
        context.dealloc_pd(allocated[1][0])
        equal(struct.unpack("<I", other.alloc_pd(out_size=4)[1])[0], 1, "number of the next")
    # Closing the device releases its protection domains.
    with opened() as context:
        equal(len([context.alloc_pd() for _ in range(MAX_PD)]), MAX_PD, "protection domains")


@suite.case("missing verbs are not supported", "EOPNOTSUPP", needs_emulator=False)
def absent():
    with opened() as context:
        create_cq = 18
        return result_of(context.command, create_cq, struct.pack("<QIIiI", 0, 16, 0, -1, 0), 16)


@suite.case("its module is removed under a program that has it open", needs_emulator=False)
def unloaded():
    context = opened()
    handle, _ = context.alloc_pd()
    remove_under(context)
    equal(os.path.exists(LOADED), False, "whether the module is loaded")

    equal(bool(select.select([context.async_fd], [], [], 0)[0]), True, "whether there is an event")
    equal(struct.unpack("<QII", os.read(context.async_fd, 16))[1], DEVICE_FATAL, "event")
    for what in (context.alloc_pd, lambda: context.query_port(1)):
        equal(result_of(what), "EIO", "a call")
    # The object no longer exists, which is the requested result.
    equal(result_of(context.dealloc_pd, handle), "ok", "dealloc_pd")
    context.close()


@suite.case("it is registered and unregistered", needs_emulator=False)
def rounds():
    for _ in range(5):
        context = opened()
        context.alloc_pd()
        remove_under(context)
        run("insmod", MODULE)
        udev_settles()
        context.close()


suite.run(before, after)
