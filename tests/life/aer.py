# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""PCI Express errors that the kernel's aer_inject simulates: the root port raises an interrupt, and its driver reads the error.

Run as a program, it injects an error: aer.py 0000:01:00.0 fatal
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

# One error of each severity: its bits in the uncorrectable and in the correctable status. The severity register of a device
# classifies uncorrectable errors; these are the specification's defaults, which our devices have.
SEVERITIES = {
    # A receiver error, which the link layer has corrected.
    "correctable": (0, 1 << 0),
    # A completion timeout: a read of memory by the device was lost, the link is good.
    "nonfatal": (1 << 14, 0),
    # A malformed packet: the link can't be trusted any more and is reset.
    "fatal": (1 << 18, 0),
}


def inject(address, severity):
    """Injects an error of a severity into the function at ADDRESS, such as 0000:01:00.0, which is behind a root port.

    Returns once the interrupt is raised. The kernel recovers later, as aer_count() and its log show.
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
    """Returns the number of errors of a severity that the kernel has counted for a function."""
    counts = Path(f"/sys/bus/pci/devices/{address}/aer_dev_{severity}").read_text()
    return int(re.findall(r"^TOTAL_ERR_\w+ (\d+)$", counts, re.MULTILINE)[0])


if __name__ == "__main__":
    inject(*sys.argv[1:])
