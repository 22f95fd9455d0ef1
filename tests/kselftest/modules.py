# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Loads and removes the driver, without a process for it where that is possible."""

import ctypes
import os
import subprocess

# Architectures that are newer than x86 share their numbers.
DELETE_MODULE, FINIT_MODULE, UNSHARE = (176, 313, 272) if os.uname().machine == "x86_64" else (106, 273, 97)


def syscall(number, *arguments):
    """Calls the kernel where Python has no function for it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def remove_module():
    """Tries to, without force or patience."""
    syscall(DELETE_MODULE, ctypes.c_char_p(b"efa"), os.O_NONBLOCK)


def load_module(file, parameters=""):
    """As insmod does, which is left to unpack a file of a distribution's."""
    if not str(file).endswith(".ko"):
        subprocess.run(["insmod", file, *parameters.split()], check=True)
        return
    with open(file, "rb") as module:
        syscall(FINIT_MODULE, module.fileno(), ctypes.c_char_p(parameters.encode()), 0)
