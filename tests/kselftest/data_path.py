# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Direct access of a program to the device, without any library: doorbells, and bits of work requests and completions.

The layouts are those of rdma-core's efa_io_defs.h.
"""

import ctypes
import mmap

from objects import Mapping

# Bits of a send work request: that it is one, in the first control byte, and its framing, in the second.
META_DESC = 1 << 7
FIRST, LAST, COMP_REQ = 1 << 2, 1 << 3, 1 << 4
# Framing of a receive work request, in the same word as the key.
RECV_FIRST_AND_LAST = 1 << 30 | 1 << 31
# Bits of a completion's flags: the phase, which alternates with each round through the queue, and the type of the queue.
PHASE, QUEUE, SEND_QUEUE = 1, 3 << 1, 1 << 1


def whole_pages(length):
    return -(-length // mmap.PAGESIZE) * mmap.PAGESIZE


class Doorbell:
    """A mapped 32-bit register. Each write is a single store."""

    def __init__(self, context, key, offset):
        self.mapping = Mapping(context, key, whole_pages(offset + 4))
        self.register = ctypes.c_uint32.from_buffer(self.mapping.memory, offset)

    def ring(self, value):
        self.register.value = value

    def read(self):
        return self.register.value

    def close(self):
        del self.register
        self.mapping.close()
