#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Runs a command as root of a user namespace with identical ids inside and outside. Only for root: unshare would need /etc/subuid.

usage: mapped.py COMMAND [ARGUMENT...]
"""

import ctypes
import os
import sys

CLONE_NEWUSER = 0x10000000
IDS = "0 0 65536"


def main(command):
    made, mapped = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER):
            sys.exit(f"mapped.py: no user namespace: {os.strerror(ctypes.get_errno())}")
        os.close(made[1])
        os.close(mapped[1])
        os.read(mapped[0], 1)
        os.execvp(command[0], command)
    os.close(made[1])
    os.close(mapped[0])
    # Nothing is written: the read ends when the child closes its end.
    os.read(made[0], 1)
    for kind in ("uid", "gid"):
        with open(f"/proc/{child}/{kind}_map", "w") as file:
            file.write(IDS)
    os.close(mapped[1])
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
