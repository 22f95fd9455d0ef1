# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Errors of PCI Express, as the kernel's aer_inject makes them up: the root port interrupts, and its driver reads of the error.

Run as a program, it injects one: aer.py 0000:01:00.0 fatal
"""

import re
import struct
import subprocess
import sys
from pathlib import Path

INJECTOR = Path("/dev/aer_inject")

# struct aer_error_inj of drivers/pci/pcie/aer_inject.c: bus, device, function; uncorrectable and correctable status, the header of
# the TLP, PCI domain.
ERROR = struct.Struct("=3Bx2I4II")

# One error of each severity: its bits in the uncorrectable and in the correctable status. How severe an uncorrectable one is, a
# device's severity register says; these are the defaults of the specification, which our devices have.
SEVERITIES = {
    # A receiver error: the link layer got over it.
    "correctable": (0, 1 << 0),
    # A completion timeout: a read of memory by the device was lost, the link is good.
    "nonfatal": (1 << 14, 0),
    # A malformed packet: the link can't be trusted any more and is reset.
    "fatal": (1 << 18, 0),
}


def inject(address, severity):
    """Injects an error of a severity into the function at ADDRESS, such as 0000:01:00.0, which is behind a root port.

    Returns when the interrupt was raised; the kernel recovers later, and tells it by aer_count() and its log.
    """
    if not INJECTOR.exists():
        subprocess.run(["modprobe", "aer_inject"], check=True)
    domain, bus, device, function = (int(part, 16) for part in re.split("[:.]", address))
    uncorrectable, correctable = SEVERITIES[severity]
    error = ERROR.pack(bus, device, function, uncorrectable, correctable, 0, 0, 0, 0, domain)
    # Unbuffered: each write is one error.
    with open(INJECTOR, "wb", buffering=0) as injector:
        injector.write(error)


def aer_count(address, severity):
    """How many errors of a severity the kernel has counted at a function."""
    counts = Path(f"/sys/bus/pci/devices/{address}/aer_dev_{severity}").read_text()
    return int(re.findall(r"^TOTAL_ERR_\w+ (\d+)$", counts, re.MULTILINE)[0])


if __name__ == "__main__":
    inject(*sys.argv[1:])
