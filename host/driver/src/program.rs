// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Programs that use the device like rdma-core's EFA provider: verbs and [rings](crate::rings).

use efa_hw::io::{Cdesc, RxDesc};
use ib_core::{
    ffi as ib, registry,
    umem::Memory,
    uverbs::{zeroed, Kind, Process, QpAttr},
};
use kernel::{
    error::{code::*, Result},
    page::PAGE_SIZE,
};

use crate::{
    ffi,
    rings::{Cq, Peer, Qp, Ring, Sge, WQE},
};

/// The Q_Key of all queue pairs in the tests.
pub const QKEY: u32 = 0x1111;

/// `IBV_QUERY_DEVICE_*`: bits of `device_caps`.
const HAS_EVENTS: u32 = 1 << 2;
const HAS_COUNTERS: u32 = 1 << 8;

/// Returns the bytes of a structure of the user ABI.
fn bytes<T>(value: &T) -> &[u8] {
    // SAFETY: These structures have integers only, and no padding.
    unsafe { core::slice::from_raw_parts(core::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// As [`bytes`].
fn bytes_mut<T>(value: &mut T) -> &mut [u8] {
    // SAFETY: As above.
    unsafe { core::slice::from_raw_parts_mut(core::ptr::from_mut(value).cast(), size_of::<T>()) }
}

/// A program with a context. Its calls fail as those of a [`Process`].
pub struct Program {
    /// The open device file.
    pub process: Process,
    sub_cqs: u16,
    min_sends: u32,
    device_caps: u32,
}

impl Program {
    /// Opens the device, and creates a context.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn new() -> Result<Self> {
        let process = Process::open()?;
        let mut command: ffi::efa_ibv_alloc_ucontext_cmd = zeroed();
        command.supported_caps = 3;
        let mut context: ffi::efa_ibv_alloc_ucontext_resp = zeroed();
        process.alloc_context(bytes(&command), bytes_mut(&mut context))?;
        let mut device: ffi::efa_ibv_ex_query_device_resp = zeroed();
        process.query_device(&[], bytes_mut(&mut device))?;
        Ok(Self {
            process,
            sub_cqs: context.sub_cqs_per_cq,
            min_sends: context.min_sq_wr.into(),
            device_caps: device.device_caps,
        })
    }

    /// Returns whether completion queues can have events.
    pub fn has_events(&self) -> bool {
        self.device_caps & HAS_EVENTS != 0
    }

    /// Returns whether the device has completion counters.
    pub fn has_counters(&self) -> bool {
        self.device_caps & HAS_COUNTERS != 0
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn alloc_pd(&self) -> Result<u32> {
        let mut response: ffi::efa_ibv_alloc_pd_resp = zeroed();
        self.process.alloc_pd(&[], bytes_mut(&mut response))
    }

    /// Creates a completion queue, and maps its ring unless the program provides the memory.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn create_cq(
        &self,
        entries: u32,
        events: bool,
        memory: Option<(u64, usize)>,
    ) -> Result<Cq> {
        let mut command: ffi::efa_ibv_create_cq = zeroed();
        command.cq_entry_size = Cdesc::SIZE as u32;
        command.num_sub_cqs = self.sub_cqs;
        command.flags = events.into();
        let mut response: ffi::efa_ibv_create_cq_resp = zeroed();
        let output = bytes_mut(&mut response);
        let id = self
            .process
            .create_cq(entries, memory, bytes(&command), output)?;
        let map = || -> Result<_> {
            let ring = match memory {
                None => Some(
                    self.process
                        .map(response.q_mmap_key, response.q_mmap_size)?,
                ),
                Some(_) => None,
            };
            let doorbell = match response.comp_mask {
                0 => None,
                _ => Some((
                    self.process.map(response.db_mmap_key, PAGE_SIZE as u64)?,
                    response.db_off as usize,
                )),
            };
            Ok((ring, doorbell))
        };
        let (ring, doorbell) = map().inspect_err(|_| {
            let _ = self.process.destroy(id);
        })?;
        Ok(Cq {
            id,
            index: response.cq_idx,
            ring,
            doorbell,
            depth: entries.next_power_of_two() as usize,
            consumed: vec![0; self.sub_cqs.into()],
            events: 0,
            is_armed: false,
        })
    }

    /// Creates a queue pair, in the reset state until [`Program::bring_up`], and maps its rings.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn create_qp(&self, pd: u32, cq: u32, is_srd: bool, sends: u32, recvs: u32) -> Result<Qp> {
        // The library rounds up to the minimum of the device.
        let sends = sends.max(self.min_sends);
        let mut command: ffi::efa_ibv_create_qp = zeroed();
        command.rq_ring_size = (recvs * RxDesc::SIZE as u32).next_power_of_two();
        command.sq_ring_size = (sends * WQE as u32).next_power_of_two();
        command.driver_qp_type = if is_srd {
            ffi::EFA_QP_DRIVER_TYPE_SRD
        } else {
            0
        };
        let mut response: ffi::efa_ibv_create_qp_resp = zeroed();
        let wanted = QpAttr {
            pd,
            send_cq: cq,
            recv_cq: cq,
            kind: if is_srd {
                ib::ib_qp_type_IB_QPT_DRIVER
            } else {
                ib::ib_qp_type_IB_QPT_UD
            },
            cap: ib::ib_qp_cap {
                max_send_wr: sends,
                max_recv_wr: recvs,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
                max_rdma_ctxs: 0,
            },
        };
        let output = bytes_mut(&mut response);
        let (id, number) = self.process.create_qp(wanted, bytes(&command), output)?;
        let page = PAGE_SIZE as u64;
        let map = || -> Result<_> {
            let start = response.llq_desc_offset as usize;
            let length = (start as u64 + u64::from(command.sq_ring_size)).next_multiple_of(page);
            let send = Ring {
                entries: self.process.map(response.llq_desc_mmap_key, length)?,
                start,
                doorbell: self.process.map(response.sq_db_mmap_key, page)?,
                offset: response.sq_db_offset as usize,
                posted: 0,
            };
            let recv = match response.rq_mmap_size {
                0 => None,
                size => Some(Ring {
                    entries: self.process.map(response.rq_mmap_key, size)?,
                    start: 0,
                    doorbell: self.process.map(response.rq_db_mmap_key, page)?,
                    offset: response.rq_db_offset as usize,
                    posted: 0,
                }),
            };
            Ok((send, recv))
        };
        let (send, recv) = map().inspect_err(|_| {
            let _ = self.process.destroy(id);
        })?;
        Ok(Qp {
            id,
            number,
            send: Some(send),
            recv,
            sends: sends.next_power_of_two(),
            recvs: recvs.next_power_of_two(),
        })
    }

    /// Moves a queue pair to a state, an `IB_QPS_*`, with the required attributes.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn modify_qp(&self, id: u32, state: u32) -> Result {
        let (mut attr, mask) = qp_attr(state);
        self.process.modify_qp(id, &mut attr, mask, &[], &mut [])
    }

    /// Moves a queue pair through INIT and RTR to RTS.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn bring_up(&self, qp: &Qp) -> Result {
        UP.iter()
            .try_for_each(|state| self.modify_qp(qp.id, *state))
    }

    /// Creates an address handle. Returns its id, and its number in the device.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn create_ah(&self, pd: u32, gid: &[u8; 16]) -> Result<(u32, u16)> {
        let mut response: ffi::efa_ibv_create_ah_resp = zeroed();
        let output = bytes_mut(&mut response);
        let id = self.process.create_ah(pd, gid, &[], output)?;
        Ok((id, response.efa_address_handle))
    }

    /// Registers memory for local reads and writes. Returns the id and the local key.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn register(&self, pd: u32, start: u64, length: u64) -> Result<(u32, u32)> {
        let memory = (start, length);
        let (id, keys) = self.process.register(pd, memory, LOCAL, &[], &mut [])?;
        Ok((id, keys.local))
    }

    /// Registers a dma-buf. Returns the id and the local key.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn register_dmabuf(&self, pd: u32, number: i32, length: u64) -> Result<(u32, u32)> {
        let (id, keys) = self.process.register_dmabuf(pd, number, length, LOCAL)?;
        Ok((id, keys.local))
    }

    /// Creates a completion counter, whose two values are at these addresses.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn create_counter(&self, comp: u64, err: u64) -> Result<u32> {
        let names = [
            ffi::efa_comp_cntr_create_attrs_EFA_IB_ATTR_CREATE_COMP_CNTR_COMP_BUFFER,
            ffi::efa_comp_cntr_create_attrs_EFA_IB_ATTR_CREATE_COMP_CNTR_ERR_BUFFER,
        ];
        let [comp_name, err_name] = names.map(|name| name as u16);
        self.process
            .create_counter(&[(comp_name, (comp, 8)), (err_name, (err, 8))])
    }

    /// Sets the number of successes of a completion counter.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn set_counter(&self, id: u32, value: u64) -> Result {
        let entry = ib::ib_comp_cntr_entry_IB_COMP_CNTR_ENTRY_COMP;
        let op = ib::ib_comp_cntr_modify_op_IB_COMP_CNTR_MODIFY_OP_SET;
        self.process.modify_counter(id, entry, op, value)
    }
}

/// Access flags of regions for local use only.
const LOCAL: u32 = ib::ib_access_flags_IB_ACCESS_LOCAL_WRITE;

/// State transitions that make a queue pair ready to send.
pub const UP: [u32; 3] = [
    ib::ib_qp_state_IB_QPS_INIT,
    ib::ib_qp_state_IB_QPS_RTR,
    ib::ib_qp_state_IB_QPS_RTS,
];

/// Returns the GID of the device, for use as its own peer.
///
/// # Errors
///
/// - [`ENODEV`] if no device is registered.
pub fn own_gid() -> Result<[u8; 16]> {
    registry::gid(registry::registered().ok_or(ENODEV)?)
}

/// Returns the attributes for a transition to a state, and their mask.
pub fn qp_attr(state: u32) -> (ib::ib_qp_attr, u32) {
    let mut attr: ib::ib_qp_attr = zeroed();
    attr.qp_state = state;
    attr.port_num = 1;
    attr.qkey = QKEY;
    let more = match state {
        ib::ib_qp_state_IB_QPS_INIT => {
            ib::ib_qp_attr_mask_IB_QP_PKEY_INDEX
                | ib::ib_qp_attr_mask_IB_QP_PORT
                | ib::ib_qp_attr_mask_IB_QP_QKEY
        }
        ib::ib_qp_state_IB_QPS_RTS => ib::ib_qp_attr_mask_IB_QP_SQ_PSN,
        _ => 0,
    };
    (attr, ib::ib_qp_attr_mask_IB_QP_STATE | more)
}

/// A program with one object of each kind that all devices have.
pub struct Objects {
    /// The program.
    pub program: Program,
    /// Its protection domain.
    pub pd: u32,
    /// Its completion queue.
    pub cq: Cq,
    /// Its queue pair, in the RTS state.
    pub qp: Qp,
    /// Its address handle, for the device itself.
    pub ah: u32,
    /// Address of the device as its own peer.
    pub peer: Peer,
    /// Its memory region.
    pub mr: u32,
    /// The registered memory.
    pub sge: Sge,
    /// Its memory, part of which is registered.
    pub memory: Memory,
}

impl Objects {
    /// Creates the program and its objects.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn new() -> Result<Self> {
        let program = Program::new()?;
        let pd = program.alloc_pd()?;
        let cq = program.create_cq(64, program.has_events(), None)?;
        let qp = program.create_qp(pd, cq.id, true, 64, 16)?;
        program.bring_up(&qp)?;
        let (ah, number) = program.create_ah(pd, &own_gid()?)?;
        let memory = Memory::new(64 << 10);
        let (addr, length) = (memory.address() + 100, 50_000);
        let (mr, key) = program.register(pd, addr, length.into())?;
        let peer = Peer {
            ah: number,
            qpn: qp.number,
        };
        let sge = Sge { addr, length, key };
        Ok(Self {
            program,
            pd,
            cq,
            qp,
            ah,
            peer,
            mr,
            sge,
            memory,
        })
    }

    /// Returns ids and kinds of the objects that have [details](Process::details).
    pub fn with_details(&self) -> [(u32, Kind); 3] {
        [
            (self.cq.id, Kind::Cq),
            (self.qp.id, Kind::Qp),
            (self.mr, Kind::Mr),
        ]
    }
}
