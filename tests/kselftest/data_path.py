# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What a program writes to the device itself, without any library: doorbells, and the bits of work requests and completions.

The layouts are those of rdma-core's efa_io_defs.h.
"""

import ctypes
import mmap

from objects import Mapping

# Of a send work request: what it is, in the first control byte, and its framing, in the second.
HAS_IMM, INLINE_MSG, META_DESC = 1 << 4, 1 << 5, 1 << 7
FIRST, LAST, COMP_REQ = 1 << 2, 1 << 3, 1 << 4
# Of a receive work request: its framing, beside the key.
RECV_FIRST_AND_LAST = 1 << 30 | 1 << 31
# Of a completion's flags: the round through the queue, and of which queue it is.
PHASE, QUEUE, SEND_QUEUE = 1, 3 << 1, 1 << 1


def whole_pages(length):
    return -(-length // mmap.PAGESIZE) * mmap.PAGESIZE


class Doorbell:
    """A mapped register of 32 bits. There is one store for each write."""

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
