# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Loads and removes the driver, without a child process where possible."""

import contextlib
import ctypes
import os
import subprocess

from selftest import Skipped

# Numbers of system calls. Architectures newer than x86 share the same numbers.
DELETE_MODULE, FINIT_MODULE, UNSHARE, SETNS = (176, 313, 272, 308) if os.uname().machine == "x86_64" else (106, 273, 97, 268)


def syscall(number, *arguments):
    """Makes a system call that Python has no function for."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def find_module():
    """Returns the path of the module's file, or None if it is not known."""
    name = os.environ.get("EFA_KO")
    with contextlib.suppress(FileNotFoundError):
        name = name or subprocess.run(["modinfo", "-F", "filename", "efa"], capture_output=True, text=True, check=False).stdout.strip()
    return name if name and os.path.isfile(name) else None


MODULE = find_module()


def remove_module():
    """Removes the driver. Neither forces that nor waits until it is possible."""
    if not MODULE:
        raise Skipped("the module's file is not known: set EFA_KO")
    syscall(DELETE_MODULE, ctypes.c_char_p(b"efa"), os.O_NONBLOCK)


def load_module(parameters=""):
    """Loads the driver. insmod unpacks compressed files, which distributions use."""
    if not str(MODULE).endswith(".ko"):
        subprocess.run(["insmod", MODULE, *parameters.split()], check=True)
        return
    with open(MODULE, "rb") as module:
        syscall(FINIT_MODULE, module.fileno(), ctypes.c_char_p(parameters.encode()), 0)
