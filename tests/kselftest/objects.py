# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Completion queues, queue pairs, completion counters, memory regions and address handles on the raw uverbs interface.

Each class creates an object of an open device. Every field of the request and the size of the response can be set, also to
wrong values. Names are those of <rdma/ib_user_verbs.h>, <rdma/ib_user_ioctl_cmds.h> and <rdma/efa-abi.h>.
"""

import collections
import ctypes
import mmap
import os
import struct

import uverbs
from uverbs import UHW_IN, UHW_OUT, Buffer, fd_in, new_handle, object_handle, pointer_in, pointer_out

OBJECT_PD, OBJECT_COMP_CHANNEL, OBJECT_CQ, OBJECT_QP = 1, 2, 3, 4
OBJECT_AH, OBJECT_MR = 6, 7
OBJECT_ASYNC_EVENT, OBJECT_COMP_CNTR = 16, 19

METHOD_CQ_CREATE, METHOD_CQ_DESTROY = 0, 1
METHOD_QP_CREATE, METHOD_QP_DESTROY, METHOD_QP_ATTACH_COMP_CNTR = range(3)
METHOD_COMP_CNTR_CREATE, METHOD_COMP_CNTR_DESTROY, METHOD_COMP_CNTR_MODIFY, METHOD_COMP_CNTR_READ = range(4)
METHOD_QUERY_COMP_CNTR_CAPS = 8
METHOD_PD_DESTROY = METHOD_AH_DESTROY = 0
METHOD_DM_MR_REG, METHOD_MR_DESTROY, METHOD_ADVISE_MR, METHOD_QUERY_MR, METHOD_REG_DMABUF_MR, METHOD_REG_MR = range(6)
METHOD_EFA_MR_QUERY = 0x1000

# Commands of the write interface.
CREATE_AH, DESTROY_AH = 5, 8
REG_MR, DEREG_MR = 9, 13
CREATE_COMP_CHANNEL, DESTROY_CQ = 17, 20
CREATE_QP, QUERY_QP, MODIFY_QP, DESTROY_QP = 24, 25, 26, 27

ACCESS_LOCAL_WRITE = 1

CQ_WITH_COMPLETION_CHANNEL, CQ_WITH_SGID, CQ_WITH_SQ_COMP_64_BIT_REQ_ID = 1, 2, 4
QP_WITH_UNSOLICITED_WRITE_RECV, QP_WITH_SQ_64_BIT_REQ_ID = 1, 2
QPT_RC, QPT_UC, QPT_UD, QPT_DRIVER = 2, 3, 4, 0xFF

QPS_RESET, QPS_INIT, QPS_RTR, QPS_RTS, QPS_SQD, QPS_SQE, QPS_ERR = range(7)
QP_STATE, QP_PKEY_INDEX, QP_PORT, QP_QKEY, QP_SQ_PSN = 1, 0x10, 0x20, 0x40, 0x10000

# Q_Key of each queue pair that is brought to RTS.
QKEY = 0x11111111

BUFFER_DMABUF, BUFFER_VA = 0, 1

COMP_CNTR_COMP, COMP_CNTR_ERR = 0, 1
COMP_CNTR_SET, COMP_CNTR_INC = 0, 1
ATTACH_SEND = 1

CqResponse = collections.namedtuple("CqResponse", "comp_mask q_mmap_key q_mmap_size cq_idx db_off db_mmap_key")
CQ_RESPONSE = struct.Struct("<I4xQQH2xIQ")
QpResponse = collections.namedtuple(
    "QpResponse",
    "comp_mask rq_db_offset sq_db_offset llq_desc_offset rq_mmap_key rq_mmap_size rq_db_mmap_key sq_db_mmap_key"
    " llq_desc_mmap_key send_sub_cq_idx recv_sub_cq_idx",
)
QP_RESPONSE = struct.Struct("<4I5Q2H4x")


def padded(response, layout):
    """Unpacks a response, padded or truncated to the size of its layout."""
    return layout.unpack(response.ljust(layout.size, b"\0")[: layout.size])


class Mapping:
    """A mapping of the memory that an mmap key identifies."""

    def __init__(self, context, key, length, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_SHARED):
        self.memory = mmap.mmap(context.fd, length, flags=flags, prot=prot, offset=key)

    def close(self):
        self.memory.close()


class CompletionChannel:
    """A file descriptor that becomes readable with a completion event."""

    def __init__(self, context):
        (self.fd,) = struct.unpack("<I", context.command(CREATE_COMP_CHANNEL, b"", 4))

    def close(self):
        os.close(self.fd)


class CompletionQueue:
    """A CQ. `buffer` is the value of the BUF_UMEM attribute: type, fd, address, length and, optionally, both flags."""

    def __init__(
        self,
        context,
        cqe=16,
        cq_entry_size=32,
        num_sub_cqs=1,
        flags=0,
        comp_mask=0,
        reserved=bytes(5),
        request=None,
        out_size=CQ_RESPONSE.size,
        response=None,
        channel=None,
        vector=0,
        cq_flags=0,
        buffer=None,
        legacy_buffer=(),
        attributes=(),
        replace=None,
        driver=uverbs.DRIVER_EFA,
    ):
        if request is None:
            request = struct.pack("<IIHB5s", comp_mask, cq_entry_size, num_sub_cqs, flags, reserved)
        self.context = context
        self.cqe = Buffer(4)
        response = response or Buffer(out_size)
        sent = [
            new_handle(0),
            pointer_in(1, struct.pack("<I", cqe)),
            pointer_in(2, struct.pack("<Q", 0x1122334455667788)),
            pointer_in(4, struct.pack("<I", vector)),
            pointer_out(6, self.cqe),
            pointer_in(UHW_IN, request),
            pointer_out(UHW_OUT, response),
        ]
        if channel is not None:
            sent.append(fd_in(3, channel))
        if cq_flags is not None:
            sent.append(pointer_in(5, struct.pack("<I", cq_flags)))
        if context.async_fd is not None:
            sent.append(fd_in(7, context.async_fd))
        if buffer is not None:
            sent.append(buffer_in(12, *buffer))
        sent += [pointer_in(number, struct.pack("<Q", value)) for number, value in legacy_buffer]
        answer = context.ioctl(OBJECT_CQ, METHOD_CQ_CREATE, *uverbs.replaced(sent, replace), *attributes, driver=driver)
        self.handle = answer[0]
        self.raw = response.bytes()
        self.response = CqResponse(*padded(self.raw, CQ_RESPONSE))

    def destroy(self):
        self.context.ioctl(OBJECT_CQ, METHOD_CQ_DESTROY, object_handle(0, self.handle), pointer_out(1, Buffer(8)))

    def destroy_by_write(self):
        self.context.command(DESTROY_CQ, struct.pack("<II", self.handle, 0), 8)


class QueuePair:
    """A QP."""

    def __init__(
        self,
        context,
        pd,
        send_cq,
        recv_cq,
        max_send_wr=32,
        max_recv_wr=16,
        max_send_sge=1,
        max_recv_sge=1,
        max_inline_data=0,
        qp_type=QPT_DRIVER,
        srq=0,
        is_srq=0,
        sq_sig_all=0,
        comp_mask=0,
        rq_ring_size=16 * 16,
        sq_ring_size=32 * 64,
        driver_qp_type=0,
        flags=0,
        sl=0,
        reserved=bytes(5),
        request=None,
        out_size=QP_RESPONSE.size,
        buffer=None,
        extended=None,
    ):
        if request is None:
            request = struct.pack("<4IHB5s", comp_mask, rq_ring_size, sq_ring_size, driver_qp_type, flags, sl, reserved)
        body = struct.pack(
            *("<Q9I4B", 0x99, pd, send_cq, recv_cq, srq, max_send_wr, max_recv_wr, max_send_sge, max_recv_sge),
            *(max_inline_data, sq_sig_all, qp_type, is_srq, 0),
        )
        self.context = context
        if extended is None:
            response = context.command(CREATE_QP, body + request, 32 + out_size, buffer)
        else:
            # comp_mask, create_flags, rwq_ind_tbl_handle, source_qpn
            body += struct.pack("<4I", *extended)
            response = context.extended(CREATE_QP, body, 40, request, out_size)
        # handle, number, max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data
        self.handle, self.qpn, *self.caps = struct.unpack_from("<7I4x", response)
        self.raw = response[32 if extended is None else 40 :]
        self.response = QpResponse(*padded(self.raw, QP_RESPONSE))

    def destroy(self):
        self.context.command(DESTROY_QP, struct.pack("<II", self.handle, 0), 4)

    def destroy_by_ioctl(self):
        self.context.ioctl(OBJECT_QP, METHOD_QP_DESTROY, object_handle(0, self.handle), pointer_out(1, Buffer(4)))

    def modify(
        self,
        attr_mask,
        qp_state=0,
        cur_qp_state=0,
        pkey_index=0,
        port_num=1,
        qkey=0,
        sq_psn=0,
        rq_psn=0,
        rnr_retry=0,
        dest_qp_num=0,
        qp_access_flags=0,
        path_mtu=0,
        timeout=0,
        en_sqd_async_notify=0,
        driver_data=b"",
        handle=None,
        rate_limit=None,
        driver_out=0,
        buffer=None,
    ):
        destinations = bytes(2 * 32)
        body = destinations + struct.pack(
            *("<7I2H", self.handle if handle is None else handle, attr_mask, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags),
            *(pkey_index, 0),
        )
        body += struct.pack(
            *("<14B2x", qp_state, cur_qp_state, path_mtu, 0, en_sqd_async_notify, 0, 0, 0, port_num, timeout, 0, rnr_retry, 0, 0),
        )
        if rate_limit is None:
            self.context.send(MODIFY_QP, body + driver_data)
        else:
            self.context.extended(MODIFY_QP, body + struct.pack("<II", rate_limit, 0), 8, driver_data, driver_out, buffer)

    def to_rts(self):
        """Moves the QP from RESET to RTS, each step with the attributes that both drivers require."""
        self.modify(QP_STATE | QP_PKEY_INDEX | QP_PORT | QP_QKEY, QPS_INIT, qkey=QKEY)
        self.modify(QP_STATE, QPS_RTR)
        self.modify(QP_STATE | QP_SQ_PSN, QPS_RTS)

    def query(self, attr_mask=0, driver_data=b"", out_size=128, buffer=None):
        """Returns the fields of the response by name. It starts with the destinations, which are skipped."""
        body = struct.pack("<II", self.handle, attr_mask) + driver_data
        response = self.context.command(QUERY_QP, body, out_size, buffer)
        names = (
            "max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data qkey rq_psn sq_psn dest_qp_num qp_access_flags"
            " pkey_index alt_pkey_index qp_state cur_qp_state path_mtu path_mig_state sq_draining max_rd_atomic max_dest_rd_atomic"
            " min_rnr_timer port_num timeout retry_cnt rnr_retry alt_port_num alt_timeout sq_sig_all"
        )
        return dict(zip(names.split(), struct.unpack_from("<10I2H15B", response, 64), strict=True))


class IoctlQueuePair(QueuePair):
    """A QP created by an ioctl."""

    def __init__(
        self,
        context,
        pd,
        send_cq,
        recv_cq,
        caps=(16, 16, 1, 1, 0),
        qp_type=QPT_DRIVER,
        qp_flags=None,
        request=None,
        out_size=QP_RESPONSE.size,
        attributes=(),
        replace=None,
    ):
        if request is None:
            request = struct.pack("<4IHB5s", 0, 16 * 16, 32 * 64, 0, 0, 0, bytes(5))
        capacity, number, response = Buffer(20), Buffer(4), Buffer(out_size)
        sent = [
            *(new_handle(0), object_handle(2, pd), object_handle(4, send_cq), object_handle(5, recv_cq)),
            *(pointer_in(7, struct.pack("<Q", 0x99)), pointer_in(8, struct.pack("<5I", *caps))),
            *(pointer_in(9, struct.pack("<Q", qp_type)), pointer_out(13, capacity), pointer_out(14, number)),
            *(pointer_in(UHW_IN, request), pointer_out(UHW_OUT, response)),
        ]
        if qp_flags is not None:
            sent.append(pointer_in(10, struct.pack("<Q", qp_flags)))
        self.context = context
        answer = context.ioctl(OBJECT_QP, METHOD_QP_CREATE, *uverbs.replaced(sent, replace), *attributes)
        self.handle = answer[0]
        self.qpn = int.from_bytes(number.bytes(), "little")
        self.caps = list(struct.unpack("<5I", capacity.bytes()))
        self.raw = response.bytes()
        self.response = QpResponse(*padded(self.raw, QP_RESPONSE))


def buffer_in(number, kind, fd, address, length, flags=0, optional_flags=0):
    """An attribute that describes memory."""
    return pointer_in(number, struct.pack("<IiIIQQ", kind, fd, flags, optional_flags, address, length))


class CompletionCounter:
    """A counter of successful and failed operations. COMP and ERR are the addresses of the two values, or whole attributes."""

    COMP_BUFFER, ERR_BUFFER = 0x1000, 0x1001

    def __init__(self, context, comp, err, length=8, attributes=(), replace=None):
        sent = [new_handle(0)]
        for number, place in ((self.COMP_BUFFER, comp), (self.ERR_BUFFER, err)):
            sent.append(buffer_in(number, BUFFER_VA, 0, place, length) if isinstance(place, int) else place)
        self.context = context
        answer = context.ioctl(OBJECT_COMP_CNTR, METHOD_COMP_CNTR_CREATE, *uverbs.replaced(sent, replace), *attributes)
        self.handle = answer[0]

    def modify(self, value, entry=COMP_CNTR_COMP, op=COMP_CNTR_SET, replace=None):
        sent = [object_handle(0, self.handle)]
        sent += [pointer_in(number, struct.pack("<Q", one)) for number, one in ((1, entry), (2, op), (3, value))]
        self.context.ioctl(OBJECT_COMP_CNTR, METHOD_COMP_CNTR_MODIFY, *uverbs.replaced(sent, replace))

    def read(self, entry=COMP_CNTR_COMP):
        value = Buffer(8)
        sent = (object_handle(0, self.handle), pointer_in(1, struct.pack("<Q", entry)), pointer_out(2, value))
        self.context.ioctl(OBJECT_COMP_CNTR, METHOD_COMP_CNTR_READ, *sent)
        return int.from_bytes(value.bytes(), "little")

    def attach(self, pair, ops, replace=None):
        sent = [object_handle(0, pair.handle), object_handle(1, self.handle), pointer_in(2, struct.pack("<I", ops))]
        self.context.ioctl(OBJECT_QP, METHOD_QP_ATTACH_COMP_CNTR, *uverbs.replaced(sent, replace))

    def destroy(self):
        self.context.ioctl(OBJECT_COMP_CNTR, METHOD_COMP_CNTR_DESTROY, object_handle(0, self.handle))

    @staticmethod
    def caps(context, replace=None):
        """Returns the maximum number of counters, their maximum value, and the operations that they can count."""
        outputs = [Buffer(4), Buffer(8), Buffer(4)]
        sent = [pointer_out(number, output) for number, output in enumerate(outputs)]
        context.ioctl(uverbs.OBJECT_DEVICE, METHOD_QUERY_COMP_CNTR_CAPS, *uverbs.replaced(sent, replace))
        return tuple(int.from_bytes(output.bytes(), "little") for output in outputs)


class MemoryRegion:
    """A MR of memory of this process."""

    def __init__(self, context, pd, start, length, access=ACCESS_LOCAL_WRITE, hca_va=None, driver_data=b"", out_size=0, buffer=None):
        body = struct.pack("<QQQII", start, length, start if hca_va is None else hca_va, pd, access) + driver_data
        self.context = context
        response = context.command(REG_MR, body, 12 + out_size, buffer)
        self.handle, self.lkey, self.rkey = struct.unpack_from("<III", response)

    def dereg(self):
        self.context.send(DEREG_MR, struct.pack("<I", self.handle))

    def dereg_by_ioctl(self):
        self.context.ioctl(OBJECT_MR, METHOD_MR_DESTROY, object_handle(0, self.handle))

    def query(self):
        """Returns lkey, rkey, length and address from the core."""
        outputs = [Buffer(4), Buffer(4), Buffer(8), Buffer(8)]
        sent = [pointer_out(number, output) for number, output in enumerate(outputs, 1)]
        self.context.ioctl(OBJECT_MR, METHOD_QUERY_MR, object_handle(0, self.handle), *sent)
        return tuple(int.from_bytes(output.bytes(), "little") for output in outputs)

    def efa_query(self, handle=None, outputs=None):
        """Returns the validity and the three interconnect ids from EFA's own query."""
        outputs = outputs or [Buffer(2) for _ in range(4)]
        sent = [pointer_out(0x1001 + number, output) for number, output in enumerate(outputs)]
        handle = self.handle if handle is None else handle
        self.context.ioctl(OBJECT_MR, METHOD_EFA_MR_QUERY, object_handle(0x1000, handle), *sent)
        return tuple(int.from_bytes(output.bytes(), "little") for output in outputs)


class IoctlMemoryRegion(MemoryRegion):
    """A MR created by an ioctl: of memory of this process or, if `fd` is given, of a dmabuf."""

    def __init__(self, context, pd, start, length, access=ACCESS_LOCAL_WRITE, iova=None, fd=None, attributes=(), replace=None):
        outputs = [Buffer(4), Buffer(4)]
        self.context = context
        iova = start if iova is None else iova
        if fd is None:
            sent = [
                *(new_handle(0), object_handle(1, pd), pointer_in(3, struct.pack("<Q", iova))),
                *(pointer_in(4, struct.pack("<Q", start)), pointer_in(5, struct.pack("<Q", length))),
                *(pointer_in(6, struct.pack("<I", access)), pointer_out(9, outputs[0]), pointer_out(10, outputs[1])),
            ]
            method = METHOD_REG_MR
        else:
            sent = [
                *(new_handle(0), object_handle(1, pd), pointer_in(2, struct.pack("<Q", start))),
                *(pointer_in(3, struct.pack("<Q", length)), pointer_in(4, struct.pack("<Q", iova))),
                pointer_in(5, struct.pack("<i", fd)),
                *(pointer_in(6, struct.pack("<I", access)), pointer_out(7, outputs[0]), pointer_out(8, outputs[1])),
            ]
            method = METHOD_REG_DMABUF_MR
        answer = context.ioctl(OBJECT_MR, method, *uverbs.replaced(sent, replace), *attributes)
        self.handle = answer[0]
        self.lkey, self.rkey = (int.from_bytes(output.bytes(), "little") for output in outputs)


class AddressHandle:
    """An AH."""

    def __init__(
        self,
        context,
        pd,
        dgid=b"\xfe\x80" + bytes(13) + b"\x07",
        sgid_index=0,
        is_global=1,
        port_num=1,
        sl=0,
        hop_limit=0,
        traffic_class=0,
        flow_label=0,
        request=b"",
        out_size=8,
        buffer=None,
    ):
        body = struct.pack("<QII", 0, pd, 0) + dgid
        body += struct.pack("<I4BH6B", flow_label, sgid_index, hop_limit, traffic_class, 0, 0, sl, 0, 0, is_global, port_num, 0)
        self.context = context
        response = context.command(CREATE_AH, body + request, 4 + out_size, buffer)
        (self.handle,) = struct.unpack_from("<I", response)
        self.raw = response[4:]
        # comp_mask, efa_address_handle
        self.comp_mask, self.number = padded(self.raw, struct.Struct("<IH2x"))

    def destroy(self):
        self.context.send(DESTROY_AH, struct.pack("<I", self.handle))

    def destroy_by_ioctl(self):
        self.context.ioctl(OBJECT_AH, METHOD_AH_DESTROY, object_handle(0, self.handle))


# Whether the kernel supports transparent huge pages.
HAS_HUGE_PAGES = os.path.exists("/sys/kernel/mm/transparent_hugepage")
# Number of pages at the start of memory that are never physically adjacent, so that the device has no page larger than one of
# them. If no pages were adjacent, each would be a DMA mapping. For a chain of page lists, these take a debug kernel five seconds.
SCATTERED = 64

# Mask of the page number in an entry of /proc/PID/pagemap. Only root can read the number.
PAGE_NUMBER = (1 << 55) - 1

MREMAP_MAYMOVE, MREMAP_FIXED, MREMAP_DONTUNMAP = 1, 2, 4


def move_page(source, target):
    """Moves the page at one address to another address, where it replaces a page.

    An empty page remains at the old address. Otherwise a later mapping at that address would be unmapped together with the old memory.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mremap.restype = ctypes.c_void_p
    old, new, size = ctypes.c_void_p(source), ctypes.c_void_p(target), ctypes.c_size_t(mmap.PAGESIZE)
    if libc.mremap(old, size, size, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, new) != new.value:
        raise OSError(ctypes.get_errno(), "mremap")


class Memory:
    """Pages of this process, written once so that they are allocated."""

    def __init__(self, length, prot=mmap.PROT_READ | mmap.PROT_WRITE, huge=False):
        # Room for alignment to 2 MiB.
        room = length + (2 << 20) if huge else length
        self.memory = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self.view = ctypes.c_char.from_buffer(self.memory)
        self.address = ctypes.addressof(self.view)
        if huge:
            self.address = (self.address + (2 << 20) - 1) & ~((2 << 20) - 1)
            self.memory.madvise(mmap.MADV_HUGEPAGE)
        elif room >= 2 << 20 and HAS_HUGE_PAGES:
            self.memory.madvise(mmap.MADV_NOHUGEPAGE)
        self.length = length
        offset = self.address - ctypes.addressof(self.view)
        pages = range(offset, offset + length, mmap.PAGESIZE)
        # Every other page first: adjacent pages that are also physically adjacent would be one larger page to a device.
        few = 0 if huge else SCATTERED
        for page in [*pages[:few:2], *pages[1:few:2], *pages[few:]]:
            self.memory[page] = 1
        self.scatter(min(few, len(pages)))
        if prot != mmap.PROT_READ | mmap.PROT_WRITE:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.mprotect(ctypes.c_void_p(self.address), ctypes.c_size_t(length), prot) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")

    def page_numbers(self, count):
        """Returns the physical page numbers of the first pages."""
        with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
            pagemap.seek(self.address // mmap.PAGESIZE * 8)
            return [page & PAGE_NUMBER for page in struct.unpack(f"<{count}Q", pagemap.read(8 * count))]

    def scatter(self, count):
        """Replaces those of the first pages that are physically adjacent by chance."""
        numbers = self.page_numbers(count)
        for number in range(1, count):
            if numbers[number] and numbers[number] == numbers[number - 1] + 1:
                other = Memory(mmap.PAGESIZE)
                move_page(other.address, self.address + number * mmap.PAGESIZE)
                numbers = self.page_numbers(count)

    def close(self):
        del self.view
        self.memory.close()
