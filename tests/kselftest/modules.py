# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Loads and removes the driver, without a child process where possible."""

import ctypes
import os
import subprocess

# Numbers of system calls. Architectures newer than x86 share the same numbers.
DELETE_MODULE, FINIT_MODULE, UNSHARE, SETNS = (176, 313, 272, 308) if os.uname().machine == "x86_64" else (106, 273, 97, 268)


def syscall(number, *arguments):
    """Makes a system call that Python has no function for."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def remove_module():
    """Removes the driver. Neither forces that nor waits until it is possible."""
    syscall(DELETE_MODULE, ctypes.c_char_p(b"efa"), os.O_NONBLOCK)


def load_module(file, parameters=""):
    """Loads the driver from a file. insmod unpacks compressed files, which distributions use."""
    if not str(file).endswith(".ko"):
        subprocess.run(["insmod", file, *parameters.split()], check=True)
        return
    with open(file, "rb") as module:
        syscall(FINIT_MODULE, module.fileno(), ctypes.c_char_p(parameters.encode()), 0)
