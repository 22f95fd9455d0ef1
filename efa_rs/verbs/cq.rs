// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion queues.

use core::mem::offset_of;

use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

use super::{
    abi::{
        CreateCqCmd,
        CreateCqResp,
        CreateCqRespMask, //
    },
    bars::offset_in_page,
    Efa, //
};
use crate::{
    com::{
        AdminQueue,
        CompletionHandler,
        Subscription, //
    },
    ffi,
    hw::admin::cq::{
        CqCaps1,
        CqCaps2,
        CreateCq, //
    },
    rdma::{
        Context,
        CqEvents,
        CqRequest,
        Details,
        Mapping,
        MmapEntry,
        NewCq,
        Udata,
        Umem, //
    },
    sys::{
        dma::UserBuffer,
        errno::eopnotsupp, //
    },
};

/// Bytes of an entry with room for the sender's address.
const ENTRY_SIZE_EX: u32 = 32;

/// Bytes of an entry without.
const ENTRY_SIZE: u32 = 16;

/// The first release of the interface ended here; input may be that short.
const MIN_INPUT: usize = offset_of!(ffi::efa_ibv_create_cq, num_sub_cqs) + size_of::<u16>();

impl CompletionHandler for CqEvents {
    fn completed(&self) {
        self.notify();
    }
}

/// A completion queue.
///
/// Fields are dropped in their order: the queue is destroyed first, as until then the device may
/// report completions.
pub(crate) struct Cq {
    device_cq: DeviceCq,
    _subscription: Option<Subscription<CqEvents>>,
    _ring_entry: Option<MmapEntry>,
    _doorbell_entry: Option<MmapEntry>,
}

impl Cq {
    /// Returns the number that the device has given the queue.
    pub(super) fn index(&self) -> u16 {
        self.device_cq.cq_idx
    }
}

/// The ring of a completion queue.
enum Ring {
    /// Memory of the driver that userspace maps.
    Driver(Arc<UserBuffer>),
    /// Memory that userspace provides.
    User(Umem),
}

impl Ring {
    /// Returns the address of the first entry as the device sees it.
    fn dma_address(&self) -> u64 {
        match self {
            Self::Driver(buffer) => buffer.dma_address(),
            Self::User(umem) => umem.start(),
        }
    }
}

/// The device's side of a completion queue; destroyed when dropped.
struct DeviceCq {
    admin: Arc<AdminQueue>,
    cq_idx: u16,
    /// Taken out when the device does not let go of it.
    ring: Option<Ring>,
}

impl Drop for DeviceCq {
    fn drop(&mut self) {
        if self.admin.destroy_cq(self.cq_idx).is_err() {
            if let Some(ring) = self.ring.take() {
                self.admin
                    .quarantine()
                    .keep(self.admin.dev(), "a completion queue", ring);
            }
        }
    }
}

/// Creates a completion queue.
///
/// # Errors
///
/// - `EOPNOTSUPP` if flags are given, none of which is supported, or if a completion channel is asked
///   for of a device without event queues.
/// - [`EINVAL`] if a size or number is not one that the device has, if request ids of 64 bits are
///   asked for, or if memory that userspace provides is not contiguous.
/// - [`ENOMEM`] if there is no memory.
/// - Those of the admin command and of [`Udata`].
pub(super) fn create(
    efa: &Efa,
    context: &Context<'_, Efa>,
    request: &CqRequest<'_>,
    udata: &Udata<'_>,
) -> Result<NewCq<Cq>> {
    let queues = &efa.attributes.queues;

    if request.entries > queues.max_cq_depth {
        return Err(EINVAL);
    }
    let command = CreateCqCmd::decode(&udata.input(MIN_INPUT)?);
    if command.comp_mask != 0 {
        return Err(eopnotsupp());
    }
    if command.reserved != [0; 5] {
        return Err(EINVAL);
    }
    match command.cq_entry_size {
        ENTRY_SIZE_EX => (),
        ENTRY_SIZE if !command.flags.with_sgid => (),
        _ => return Err(EINVAL),
    }
    if command.num_sub_cqs != queues.sub_cqs_per_cq {
        return Err(EINVAL);
    }
    // None of the devices that this driver knows has these, and none is said to have them.
    if command.flags.with_sq_comp_64_bit_req_id {
        return Err(EINVAL);
    }
    let target = if command.flags.with_completion_channel {
        // CAST: The core has checked that the vector is one of the few that there are.
        let target = efa.event_targets.get(request.comp_vector as usize);
        Some(target.ok_or_else(eopnotsupp)?)
    } else {
        None
    };

    let size = u64::from(command.cq_entry_size)
        .checked_mul(request.entries.into())
        .and_then(|size| size.checked_mul(command.num_sub_cqs.into()))
        .and_then(|size| size.checked_next_multiple_of(PAGE_SIZE as u64))
        .and_then(|size| usize::try_from(size).ok())
        .ok_or(EINVAL)?;

    let ring = match request.buffer(size)? {
        Some(umem) if umem.is_contiguous() => Ring::User(umem),
        Some(_) => return Err(EINVAL),
        None => Ring::Driver(Arc::new(
            UserBuffer::zeroed(context.dma_device(), size)?,
            GFP_KERNEL,
        )?),
    };

    let create = CreateCq {
        caps_1: CqCaps1 {
            interrupt_mode_enabled: target.is_some(),
            virt: false,
        },
        caps_2: CqCaps2 {
            // CAST: 4 or 8.
            cq_entry_size_words: (command.cq_entry_size / 4) as u8,
            set_src_addr: command.flags.with_sgid,
        },
        // CAST: The device has 16 bits for it, which its own limit respects.
        sub_cq_depth: request.entries as u16,
        eqn: target.map_or(0, |target| target.eqn),
        base_address: ring.dma_address(),
        num_sub_cqs: command.num_sub_cqs,
        uar: context.data().uar,
        ..CreateCq::default()
    };
    let created = match efa.admin.create_cq(&create) {
        Ok(created) => created,
        Err(error) => {
            if error.device_may_use_memory() {
                efa.admin
                    .quarantine()
                    .keep(efa.admin.dev(), "a completion queue", ring);
            }
            return Err(error.into());
        }
    };
    let buffer = match &ring {
        Ring::Driver(buffer) => Some(buffer.clone()),
        Ring::User(_) => None,
    };
    let device_cq = DeviceCq {
        admin: efa.admin.clone(),
        cq_idx: created.cq_idx,
        ring: Some(ring),
    };

    let mut response = CreateCqResp {
        cq_idx: created.cq_idx,
        db_off: created.db_offset,
        ..CreateCqResp::default()
    };
    let mut ring_entry = None;
    if let Some(buffer) = buffer {
        let length = buffer.size();
        let entry = context.insert_mmap(Mapping::Buffer(buffer), length)?;
        response.q_mmap_key = entry.key();
        response.q_mmap_size = length as u64;
        ring_entry = Some(entry);
    }
    let mut doorbell_entry = None;
    if created.flags.db_valid {
        let entry = context.insert_mmap(efa.bars.doorbell(created.db_offset)?, PAGE_SIZE)?;
        response.db_mmap_key = entry.key();
        response.db_off = offset_in_page(created.db_offset);
        response.comp_mask = CreateCqRespMask { db_off: true };
        doorbell_entry = Some(entry);
    }

    let subscription = target
        .map(|target| {
            let handler = request.events.clone();
            target.subscribers.subscribe(created.cq_idx, handler)
        })
        .transpose()?;

    if udata.wants_output() {
        udata.respond(&response.encode())?;
    }

    Ok(NewCq {
        data: Cq {
            device_cq,
            _subscription: subscription,
            _ring_entry: ring_entry,
            _doorbell_entry: doorbell_entry,
        },
        entries: request.entries,
        details: Details {
            names: &[c"cq_idx", c"entry_size", c"ring_size", c"db_offset"],
            values: [
                created.cq_idx.into(),
                command.cq_entry_size.into(),
                size as u64,
                created.db_offset.into(),
            ],
        },
    })
}
