# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""A device with a BAR that a program exports as a DMA buffer, through vfio-pci like a VMM. See <linux/vfio.h>."""

import contextlib
import fcntl
import mmap
import os
import select
import struct
import subprocess
import threading
from pathlib import Path
from typing import Any

from selftest import wait_until

# QEMU's ivshmem-plain, with memory in BAR 2.
VENDOR, DEVICE, BAR = "0x1af4", "0x1110", 2

SET_IOMMU, GROUP_SET_CONTAINER, GROUP_GET_DEVICE_FD = 0x3B66, 0x3B68, 0x3B6A
DEVICE_GET_REGION_INFO, DEVICE_SET_IRQS, DEVICE_RESET, DEVICE_FEATURE = 0x3B6C, 0x3B6E, 0x3B6F, 0x3B75
TYPE1V2_IOMMU = 3
CONFIG_REGION, REQ_IRQ = 7, 4
IRQ_DATA_EVENTFD, IRQ_ACTION_TRIGGER = 1 << 2, 1 << 5
FEATURE_GET, FEATURE_DMA_BUF = 1 << 16, 11
COMMAND, COMMAND_MEMORY = 4, 1 << 1

SYSFS = Path("/sys/bus/pci")
DRIVER = SYSFS / "drivers/vfio-pci"


def find():
    """Returns the device's folder in sysfs, or None if there is no such device."""
    for folder in sorted((SYSFS / "devices").iterdir()):
        with contextlib.suppress(FileNotFoundError):
            if ((folder / "vendor").read_text().strip(), (folder / "device").read_text().strip()) == (VENDOR, DEVICE):
                return folder
    return None


def load():
    """Loads the drivers that give programs access to the device."""
    # The emulated IOMMU does not remap interrupts. There are no attacks by interrupts here.
    subprocess.run(["modprobe", "vfio_iommu_type1", "allow_unsafe_interrupts=1"], check=True)
    subprocess.run(["modprobe", "vfio-pci"], check=True)


def bind():
    """Binds the device to vfio-pci; returns its folder in sysfs."""
    wait_until(find, "the device with a BAR")
    folder = find()
    if not (DRIVER / folder.name).exists():
        (folder / "driver_override").write_text("vfio-pci")
        (SYSFS / "drivers_probe").write_text(folder.name)
    return folder


class Exporter:
    """The device, opened by this program, which closes it when the kernel requests it."""

    def __init__(self):
        folder = bind()
        group = f"/dev/vfio/{(folder / 'iommu_group').resolve().name}"
        wait_until(lambda: os.path.exists(group), group)
        self.lock, self.closed = threading.Lock(), False
        self.container = os.open("/dev/vfio/vfio", os.O_RDWR | os.O_CLOEXEC)
        self.group = os.open(group, os.O_RDWR | os.O_CLOEXEC)
        fcntl.ioctl(self.group, GROUP_SET_CONTAINER, struct.pack("<i", self.container))
        fcntl.ioctl(self.container, SET_IOMMU, TYPE1V2_IOMMU)
        # The file descriptor is the result of the call, and not in the modified argument.
        self.fd: Any = fcntl.ioctl(self.group, GROUP_GET_DEVICE_FD, bytearray(folder.name.encode() + b"\0"))
        self.config, _ = self.region(CONFIG_REGION)
        self.offset, self.size = self.region(BAR)
        self.enable(True)
        self.memory = mmap.mmap(self.fd, self.size, offset=self.offset, trackfd=False)  # type: ignore[call-arg]
        self.request = os.eventfd(0, os.EFD_CLOEXEC)
        self.ended = os.eventfd(0, os.EFD_CLOEXEC)
        events = struct.pack("<5Ii", 24, IRQ_DATA_EVENTFD | IRQ_ACTION_TRIGGER, REQ_IRQ, 0, 1, self.request)
        fcntl.ioctl(self.fd, DEVICE_SET_IRQS, events)
        self.thread = threading.Thread(target=self.close_on_request, daemon=True)
        self.thread.start()

    def region(self, index):
        """Returns the offset of a region in the device's file, and its size."""
        info = fcntl.ioctl(self.fd, DEVICE_GET_REGION_INFO, struct.pack("<4I2Q", 32, 0, index, 0, 0, 0))
        _, _, _, _, size, offset = struct.unpack("<4I2Q", info)
        return offset, size

    def export(self):
        """Returns a DMA buffer of the BAR."""
        head = struct.pack("<6I", 40, FEATURE_GET | FEATURE_DMA_BUF, BAR, os.O_RDWR | os.O_CLOEXEC, 0, 1)
        return fcntl.ioctl(self.fd, DEVICE_FEATURE, bytearray(head + struct.pack("<2Q", 0, self.size)))

    def enable(self, on):
        """Switches the BAR on or off."""
        command = int.from_bytes(os.pread(self.fd, 2, self.config + COMMAND), "little") & ~COMMAND_MEMORY
        os.pwrite(self.fd, (command | COMMAND_MEMORY * on).to_bytes(2, "little"), self.config + COMMAND)

    def reset(self):
        """Resets the device. Exported memory can be used again after that."""
        fcntl.ioctl(self.fd, DEVICE_RESET)

    def close_on_request(self):
        """Closes the device when the kernel requests that, as the kernel can't remove an open device."""
        poll = select.poll()
        poll.register(self.request, select.POLLIN)
        poll.register(self.ended, select.POLLIN)
        poll.poll()
        self.end()

    def end(self):
        """Closes the device."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            self.memory.close()
            for fd in (self.fd, self.group, self.container):
                os.close(fd)

    def close(self):
        os.eventfd_write(self.ended, 1)
        self.thread.join()
        os.close(self.request)
        os.close(self.ended)


def unbind():
    """Unbinds the device from vfio-pci, which waits until the program has closed it."""
    (DRIVER / "unbind").write_text(find().name)
