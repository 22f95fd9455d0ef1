// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion queues.

use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

use super::{
    abi,
    bars::offset_in_page,
    Efa,
    Verbs, //
};
use crate::{
    com::{
        CompletionHandler,
        Lent,
        Loan,
        Subscription, //
    },
    hw::admin::cq::{
        CqCaps1,
        CqCaps2,
        CreateCq, //
    },
    rdma::{
        self,
        Context,
        CqEvents,
        CqInitAttr,
        Details,
        Mapping,
        Udata,
        Umem, //
    },
    sys::dma::UserBuffer, //
};

#[cfg(kverbs)]
use {
    super::kernel_cq::{
        KernelCq,
        Notifier, //
    },
    crate::{
        io::CompletionRings,
        rdma::{
            KernelCqInitAttr,
            WorkCompletions, //
        },
        sys::dma::Entries, //
    },
};

/// Bytes of an entry with room for the sender's address.
const ENTRY_SIZE_EX: u32 = 32;

/// Bytes of an entry without that room.
const ENTRY_SIZE: u32 = 16;

impl CompletionHandler for CqEvents {
    fn completed(&self) {
        self.notify();
    }
}

/// A completion queue.
pub(crate) struct Cq<'a> {
    cq_idx: u16,
    cqe: u32,
    _subscription: Option<Subscription>,
    ring: Ring<'a>,
    /// Bytes of an entry.
    entry_size: u32,
    /// Offset in bytes of the doorbell in its BAR.
    db_offset: u32,
    /// Bytes of all rings.
    ring_size: u64,
}

/// The ring of a completion queue.
enum Ring<'a> {
    /// Memory of the driver that userspace maps.
    Driver(Lent<'a, UserBuffer<'a>>),
    /// Memory that userspace provides.
    User(Lent<'a, Umem<'a>>),
    /// Memory of the driver that a client in the kernel polls.
    #[cfg(kverbs)]
    Kernel(Arc<KernelCq<'a>>),
}

impl<'a> Ring<'a> {
    /// Returns the address of the first entry as the device sees it.
    fn dma_address(&self) -> u64 {
        match self {
            Self::Driver(buffer) => buffer.dma_address(),
            Self::User(umem) => umem.start(),
            #[cfg(kverbs)]
            Self::Kernel(queue) => queue.memory().dma_address(),
        }
    }

    fn loan(&self) -> &Loan<'a> {
        match self {
            Self::Driver(buffer) => buffer.loan(),
            Self::User(umem) => umem.loan(),
            #[cfg(kverbs)]
            Self::Kernel(queue) => queue.memory().loan(),
        }
    }
}

#[vtable]
impl<'a> rdma::CompletionQueue<'a, Verbs> for Cq<'a> {
    fn create_user(
        device: &rdma::Device<Efa<'a>>,
        context: &mut Context<'_, 'a, Verbs>,
        attr: &CqInitAttr<'_, 'a>,
        udata: &Udata<'_>,
    ) -> impl PinInit<Self, Error> {
        let efa = device.data();
        // As in the C driver, this failure is not counted.
        if attr.flags != 0 {
            return Err(EOPNOTSUPP);
        }
        Self::create(efa, context, attr, udata)
            .inspect_err(|_| efa.errors.create_cq_err.increment())
    }

    #[cfg(kverbs)]
    fn create_kernel(
        device: &rdma::Device<Efa<'a>>,
        attr: &KernelCqInitAttr<'_>,
    ) -> impl PinInit<Self, Error> {
        let efa = device.data();
        Self::create_polled(efa, attr).inspect_err(|_| efa.errors.create_cq_err.increment())
    }

    #[cfg(kverbs)]
    fn poll(&self, _device: &rdma::Device<Efa<'a>>, completions: &mut WorkCompletions<'_>) {
        if let Ring::Kernel(queue) = &self.ring {
            queue.poll(completions);
        }
    }

    #[cfg(kverbs)]
    fn request_notify(&self, _device: &rdma::Device<Efa<'a>>) -> Result {
        match &self.ring {
            Ring::Kernel(queue) => queue.arm(),
            _ => Err(EOPNOTSUPP),
        }
    }

    #[cfg(kverbs)]
    fn has_completions(&self, _device: &rdma::Device<Efa<'a>>) -> bool {
        match &self.ring {
            Ring::Kernel(queue) => queue.has_completions(),
            _ => false,
        }
    }

    fn cqe(&self) -> u32 {
        self.cqe
    }

    fn details(&self, details: &mut Details) -> Result {
        details.put(c"cq_idx", self.cq_idx.into())?;
        details.put(c"entry_size", self.entry_size.into())?;
        details.put(c"ring_size", self.ring_size)?;
        details.put(c"db_offset", self.db_offset.into())
    }

    fn destroy(&self, device: &rdma::Device<Efa<'a>>) {
        let result = device.data().admin().destroy_cq(self.cq_idx);
        self.ring.loan().settle(result);
    }
}

/// A queue that the device has created. The drop destroys it, unless `ring` was taken.
struct Created<'e, 'a> {
    efa: &'e Efa<'a>,
    cq_idx: u16,
    ring: Option<Ring<'a>>,
}

impl Drop for Created<'_, '_> {
    fn drop(&mut self) {
        if let Some(ring) = &self.ring {
            ring.loan().settle(self.efa.admin().destroy_cq(self.cq_idx));
        }
    }
}

impl<'a> Cq<'a> {
    /// Returns the queue that a client in the kernel polls; `None` for a queue of a process.
    #[cfg(kverbs)]
    pub(super) fn polled(&self) -> Option<&Arc<KernelCq<'a>>> {
        match &self.ring {
            Ring::Kernel(queue) => Some(queue),
            _ => None,
        }
    }

    /// Returns the number that the device has assigned to the queue.
    pub(super) fn index(&self) -> u16 {
        self.cq_idx
    }

    /// Creates a completion queue.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if a completion channel is requested of a device without event queues.
    /// - [`EINVAL`] if the device does not support a size or number, or if memory that userspace
    ///   provides is not contiguous.
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of the admin command and of [`Udata`].
    fn create(
        efa: &Efa<'a>,
        context: &mut Context<'_, 'a, Verbs>,
        attr: &CqInitAttr<'_, 'a>,
        udata: &Udata<'_>,
    ) -> Result<Self> {
        let queues = &efa.attributes().queues;

        if attr.cqe > queues.max_cq_depth {
            return Err(EINVAL);
        }
        let command: abi::CreateCqCmd = udata.input(abi::CREATE_CQ_MIN_INPUT)?;
        let has = |flag| u32::from(command.flags) & flag != 0;
        if command.comp_mask != 0 {
            return Err(EOPNOTSUPP);
        }
        if command.reserved_58 != [0; 5] {
            return Err(EINVAL);
        }
        match command.cq_entry_size {
            ENTRY_SIZE_EX => (),
            ENTRY_SIZE if !has(abi::CREATE_CQ_WITH_SGID) => (),
            _ => return Err(EINVAL),
        }
        if command.num_sub_cqs != queues.sub_cqs_per_cq {
            return Err(EINVAL);
        }
        let target = if has(abi::CREATE_CQ_WITH_COMPLETION_CHANNEL) {
            // CAST: The core has checked that the vector is in range.
            let target = efa.session.event_target(attr.comp_vector as usize);
            Some(target.ok_or(EOPNOTSUPP)?)
        } else {
            None
        };

        let size = u64::from(command.cq_entry_size)
            .checked_mul(attr.cqe.into())
            .and_then(|size| size.checked_mul(command.num_sub_cqs.into()))
            .and_then(|size| size.checked_next_multiple_of(PAGE_SIZE as u64))
            .and_then(|size| usize::try_from(size).ok())
            .ok_or(EINVAL)?;

        let ring = Self::ring(efa, attr, size)?;
        let create = CreateCq {
            caps_1: CqCaps1 {
                interrupt_mode_enabled: target.is_some(),
                virt: false,
            },
            caps_2: CqCaps2 {
                // CAST: 4 or 8.
                cq_entry_size_words: (command.cq_entry_size / 4) as u8,
                set_src_addr: has(abi::CREATE_CQ_WITH_SGID),
                sq_comp_64_bit_req_id: has(abi::CREATE_CQ_WITH_SQ_COMP_64_BIT_REQ_ID),
            },
            // CAST: At most `max_cq_depth`, which has 16 bits, see `Attributes`.
            sub_cq_depth: attr.cqe as u16,
            eqn: target.map_or(0, |target| target.eqn),
            base_address: ring.dma_address(),
            num_sub_cqs: command.num_sub_cqs,
            uar: context.data().uar,
            ..CreateCq::default()
        };
        let created = ring.loan().lend(|| efa.admin().create_cq(&create))?;

        let mut response = abi::CreateCqResp {
            cq_idx: created.cq_idx,
            db_off: created.db_offset,
            ..abi::CreateCqResp::default()
        };
        let mut guard = Created {
            efa,
            cq_idx: created.cq_idx,
            ring: Some(ring),
        };

        if let Some(Ring::Driver(buffer)) = &guard.ring {
            response.q_mmap_key = context.insert_mmap(Mapping::Buffer(buffer.memory().clone()))?;
            response.q_mmap_size = buffer.size() as u64;
        }
        if created.flags.db_valid {
            response.db_mmap_key = context.insert_mmap(efa.bars.doorbell(created.db_offset)?)?;
            response.db_off = offset_in_page(created.db_offset);
            response.comp_mask = abi::CREATE_CQ_RESP_DB_OFF;
        }

        udata.respond(&response)?;

        let subscription = target
            .map(|target| {
                let handler = attr.events.clone();
                target.subscribers.subscribe(created.cq_idx, handler)
            })
            .transpose()?;

        Ok(Self {
            cq_idx: created.cq_idx,
            cqe: attr.cqe,
            _subscription: subscription,
            ring: guard.ring.take().ok_or(EINVAL)?,
            entry_size: command.cq_entry_size,
            db_offset: created.db_offset,
            ring_size: size as u64,
        })
    }

    /// Creates a completion queue for a client in the kernel.
    ///
    /// # Errors
    ///
    /// - [`EOPNOTSUPP`] if flags are set, or events requested of a device without event queues.
    /// - [`EINVAL`] if the device does not support as many entries, or has no such vector.
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of the admin command.
    #[cfg(kverbs)]
    fn create_polled(efa: &Efa<'a>, attr: &KernelCqInitAttr<'_>) -> Result<Self> {
        let queues = &efa.attributes().queues;
        if attr.flags != 0 {
            return Err(EOPNOTSUPP);
        }
        let depth = attr.cqe.checked_next_power_of_two().ok_or(EINVAL)?;
        if depth > queues.max_cq_depth {
            return Err(EINVAL);
        }
        let events = match attr.events {
            None => None,
            // The client would wait for an event, and never poll.
            Some(_) if efa.session.event_queues() == 0 => return Err(EOPNOTSUPP),
            Some(events) => {
                // CAST: `usize` has 64 bits on every architecture that has EFA. `ib_create_cq` does not check the vector.
                let target = efa.session.event_target(attr.comp_vector as usize);
                Some((target.ok_or(EINVAL)?, Notifier::new(events)?))
            }
        };
        let (target, notifier) = events.unzip();

        let (epoch, sub_cqs) = (efa.session.epoch(), queues.sub_cqs_per_cq);
        let count = CompletionRings::entries(sub_cqs, depth).ok_or(EINVAL)?;
        let memory = Entries::zeroed(efa.session.device().dev(), count)?;
        let memory = Arc::new(memory, GFP_KERNEL)?;
        let rings = CompletionRings::new(memory.clone(), sub_cqs, depth)?;
        let memory = Lent::new(epoch, &"a completion queue", memory)?;
        let queue = KernelCq::new(rings, memory, notifier.as_ref(), &efa.session)?;
        let ring = Ring::Kernel(queue.clone());

        let create = CreateCq {
            caps_1: CqCaps1 {
                interrupt_mode_enabled: target.is_some(),
                virt: false,
            },
            caps_2: CqCaps2 {
                // CAST: 8.
                cq_entry_size_words: (ENTRY_SIZE_EX / 4) as u8,
                ..CqCaps2::default()
            },
            // CAST: At most `max_cq_depth`, which has 16 bits, see `Attributes`.
            sub_cq_depth: depth as u16,
            eqn: target.map_or(0, |target| target.eqn),
            base_address: ring.dma_address(),
            num_sub_cqs: sub_cqs,
            uar: efa.kernel_uar.get(efa.admin())?,
            ..CreateCq::default()
        };
        let created = ring.loan().lend(|| efa.admin().create_cq(&create))?;
        let mut guard = Created {
            efa,
            cq_idx: created.cq_idx,
            ring: Some(ring),
        };

        if created.flags.db_valid && target.is_some() {
            queue.set_doorbell(efa.bars.map_doorbell(created.db_offset)?);
        }
        let subscription = target
            .zip(notifier)
            .map(|(target, notifier)| target.subscribers.subscribe(created.cq_idx, notifier))
            .transpose()?;

        Ok(Self {
            cq_idx: created.cq_idx,
            cqe: depth,
            _subscription: subscription,
            ring: guard.ring.take().ok_or(EINVAL)?,
            entry_size: ENTRY_SIZE_EX,
            db_offset: created.db_offset,
            ring_size: u64::from(count) * u64::from(ENTRY_SIZE_EX),
        })
    }

    /// Returns the ring of `size` bytes that userspace provides, or a new one.
    fn ring(efa: &Efa<'a>, attr: &CqInitAttr<'_, 'a>, size: usize) -> Result<Ring<'a>> {
        let (epoch, what) = (efa.session.epoch(), &"a completion queue");

        Ok(match attr.buffer(size)? {
            Some(mut umem) => {
                if !umem.is_contiguous() {
                    return Err(EINVAL);
                }
                Ring::User(Lent::new(epoch, what, Arc::new(umem, GFP_KERNEL)?)?)
            }
            None => {
                let buffer = UserBuffer::zeroed(efa.session.device().dev(), size)?;
                Ring::Driver(Lent::new(epoch, what, Arc::new(buffer, GFP_KERNEL)?)?)
            }
        })
    }
}
