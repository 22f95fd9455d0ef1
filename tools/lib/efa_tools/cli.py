# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The command lines of the tools."""

import argparse
import sys
from pathlib import Path

from . import guest, toolroot
from .failure import Failure


def guarded(main):
    """Turns a failure into its sentence and exit status 1, and Ctrl-C into 130."""

    def wrapper():
        try:
            return main()
        except Failure as failure:
            print(failure, file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130

    return wrapper


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


@guarded
def vm():
    parser = argparse.ArgumentParser(
        prog="vm",
        description="Boots guests that have the toolroot as their root file system, this clone at /efa-rs and a scratch"
        " folder at /run/efa-rs/out, and runs a command in each, or a shell. The exit status is the command's.",
    )
    parser.add_argument("--driver", choices=("rust", "c", "none"), default="rust", help="the efa module to load (default: rust)")
    parser.add_argument("--flavour", choices=toolroot.FLAVOURS, default="cloud-amd64", help="the kernel (default: cloud-amd64)")
    parser.add_argument("--guests", type=positive, default=1, metavar="N", help="how many guests (default: 1)")
    parser.add_argument(
        "--device", dest="devices", action="append", default=[], metavar="SPEC", help="an emulated device of each guest, such as profile=efa2"
    )
    parser.add_argument("--scenario", type=Path, metavar="FILE", help="what the emulator does at its start")
    parser.add_argument("--timeout", type=float, default=None, metavar="S", help="end after that many seconds (default: 600)")
    parser.add_argument("--memory", default="1G", help="of each guest (default: 1G)")
    parser.add_argument("--cpus", type=positive, default=2, metavar="N", help="of each guest (default: 2)")
    parser.add_argument("--emulator", type=Path, metavar="FILE", help="use this efa-emu and do not build one")
    parser.add_argument("--module", type=Path, metavar="FILE", help="use this efa.ko and do not build one")
    parser.add_argument("command", nargs="*", help="passed to sh -c (default: a shell)")
    arguments = parser.parse_args()
    command = " ".join(arguments.command) or None
    timeout = arguments.timeout or (600 if command else float("inf"))
    options = guest.Options(**{**vars(arguments), "command": command, "timeout": timeout})
    for file in (options.emulator, options.module, options.scenario):
        if file and not file.is_file():
            raise Failure(f"There is no file {file}.")
    return guest.execute(guest.prepare(options))
