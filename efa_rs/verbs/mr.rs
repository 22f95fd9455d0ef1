// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    dma_buf::{
        DmaBuf,
        Hold, //
    },
    pd::Pd,
    Efa,
    Verbs, //
};
use crate::{
    com::{
        CommandError,
        Lent,
        Loan,
        Pages, //
    },
    hw::admin::{
        mr::{
            DeregMr,
            RegMr,
            RegMrFlags,
            RegMrPermissions,
            RegMrResponse, //
        },
        NoData, //
    },
    rdma::{
        self,
        Access,
        Details,
        MrInitAttr,
        MrKeys,
        NewMr,
        PinnedMemory,
        Udata,
        Umem, //
    },
};

#[cfg(kverbs)]
use super::kernel_mr::FastPages;

/// A memory region.
///
/// The core's object and this fit into 256 bytes, one of the allocator's sizes.
pub(crate) struct Mr<'a> {
    /// Local key at first. Work requests may change that of a region for fast registration.
    pub(super) lkey: u32,
    /// Number of pages, at most.
    pub(super) count: u32,
    /// Bytes of a page of userspace.
    pub(super) page_size: u64,
    pub(super) memory: Memory<'a>,
}

/// The memory of a memory region.
pub(super) enum Memory<'a> {
    /// Memory of a process.
    Process(Owned<'a, Umem<'a>>),
    /// Memory of a dma-buf.
    DmaBuf(DmaBuf<'a>),
    /// All memory that the device can address.
    #[cfg(kverbs)]
    All,
    /// Pages that work requests set (fast registration).
    #[cfg(kverbs)]
    Fast(KBox<FastPages<'a>>),
}

/// Pinned memory with its state for the device: one allocation of 32 bytes for memory of a process.
#[pin_data]
pub(super) struct Pinned<'a, T> {
    pub(super) memory: T,
    pub(super) loan: Loan<'a>,
}

/// The owner of pinned memory.
pub(super) struct Owned<'a, T: Send + Sync + 'a>(pub(super) Arc<Pinned<'a, T>>);

impl<'a, T: Send + Sync + 'a> Owned<'a, T> {
    /// Takes memory that the device does not use yet.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(efa: &Efa<'a>, memory: T) -> Result<Self> {
        let pinned = try_pin_init!(Pinned {
            memory,
            loan: Loan::new(efa.session.epoch())?,
        }? Error);
        Ok(Self(Arc::pin_init(pinned, GFP_KERNEL)?))
    }
}

impl<'a, T: Send + Sync + 'a> Drop for Owned<'a, T> {
    fn drop(&mut self) {
        self.0.loan.end("a memory region", || self.0.clone());
    }
}

#[vtable]
impl<'a> rdma::MemoryRegion<'a, Verbs> for Mr<'a> {
    type Shared = [u16; 4];

    fn register_user(
        device: &rdma::Device<Efa<'a>>,
        pd: &Pd,
        attr: &MrInitAttr<'a>,
        udata: &Udata<'_>,
    ) -> Result<New<'a>> {
        let efa = device.data();
        Self::register(efa, pd, attr, udata).inspect_err(|_| efa.errors.reg_mr_err.increment())
    }

    #[cfg(kverbs)]
    fn register_dma(device: &rdma::Device<Efa<'a>>, pd: &Pd, access: Access) -> Result<New<'a>> {
        let efa = device.data();
        Self::register_all(efa, pd, access).inspect_err(|_| efa.errors.get_dma_mr_err.increment())
    }

    #[cfg(kverbs)]
    fn alloc(device: &rdma::Device<Efa<'a>>, pd: &Pd, max_pages: u32) -> Result<New<'a>> {
        let efa = device.data();
        Self::alloc_fast(efa, pd, max_pages).inspect_err(|_| efa.errors.alloc_mr_err.increment())
    }

    #[cfg(kverbs)]
    fn clear_pages(&self, page_size: u32) {
        if let Memory::Fast(pages) = &self.memory {
            pages.clear(page_size);
        }
    }

    #[cfg(kverbs)]
    fn add_page(&self, addr: u64) -> Result {
        match &self.memory {
            Memory::Fast(pages) => pages.add(addr),
            _ => Err(EINVAL),
        }
    }

    fn details(&self, details: &mut Details) -> Result {
        details.put(c"page_size", self.page_size)?;
        details.put(c"pages", self.count.into())
    }

    fn deregister(&self, device: &rdma::Device<Efa<'a>>) {
        let efa = device.data();
        let deregister = || efa.deregister_mr(self.lkey());
        match &self.memory {
            Memory::Process(owned) => owned.0.loan.settle(deregister()),
            Memory::DmaBuf(owned) => owned.deregister(deregister),
            #[cfg(kverbs)]
            Memory::All => efa.session.epoch().settle(deregister()),
            #[cfg(kverbs)]
            Memory::Fast(pages) => pages.settle(efa, deregister()),
        }
    }
}

/// A new memory region.
pub(super) type New<'a> = NewMr<Mr<'a>, [u16; 4]>;

impl<'a> Mr<'a> {
    fn lkey(&self) -> u32 {
        #[cfg(kverbs)]
        if let Memory::Fast(pages) = &self.memory {
            return pages.lkey();
        }
        self.lkey
    }

    /// Creates a memory region.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if the access or another attribute is not supported, or if none of the
    ///   device's page sizes fits.
    /// - [`ENOMEM`] if there is no memory, or the device's limit on pages of a region is exceeded.
    /// - Those of pinning memory, of the admin command and of [`Udata`].
    fn register(
        efa: &Efa<'a>,
        pd: &Pd,
        attr: &MrInitAttr<'a>,
        udata: &Udata<'_>,
    ) -> Result<New<'a>> {
        let device = &efa.attributes().device;

        if attr.has_dmah {
            return Err(EOPNOTSUPP);
        }
        udata.expect_no_io()?;

        let mut supported = Access::LOCAL_WRITE;
        if device.device_caps.rdma_read {
            supported |= Access::REMOTE_READ;
        }
        if device.device_caps.rdma_write {
            supported |= Access::REMOTE_WRITE;
        }
        if attr.access.required() & !supported != 0 {
            return Err(EOPNOTSUPP);
        }

        match attr.pin(|| Hold::new(efa))? {
            PinnedMemory::Process(memory) => Self::register_process(efa, pd, attr, memory),
            PinnedMemory::DmaBuf(memory) => DmaBuf::register(efa, pd, attr, memory),
        }
    }

    /// Creates a memory region from memory of a process.
    ///
    /// # Errors
    ///
    /// Those of [`Self::register`].
    fn register_process(
        efa: &Efa<'a>,
        pd: &Pd,
        attr: &MrInitAttr<'a>,
        mut memory: Umem<'a>,
    ) -> Result<New<'a>> {
        let pages = memory.pages(efa.attributes().device.page_size_cap, attr.iova);
        let request = Request::new(efa, pd, attr, pages)?;
        let owned = Owned::new(efa, memory)?;
        let registered = owned.0.loan.lend(|| request.execute(efa))?;
        Ok(new_region(
            &registered,
            request.pages,
            Memory::Process(owned),
        ))
    }
}

/// A registration of userspace memory, before it is submitted to the device.
pub(super) struct Request<'a> {
    command: RegMr,
    /// The list of pages, if it is not in the command itself.
    list: Option<Lent<'a, Pages>>,
    /// Number and size of the pages.
    pub(super) pages: (u32, u64),
}

impl<'a> Request<'a> {
    /// Prepares the registration of `pages`; these are `None` if no page size of the device fits.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if `pages` is `None`.
    /// - [`ENOMEM`] if the device's limit on pages is exceeded, or there is no memory for the list.
    pub(super) fn new(
        efa: &Efa<'a>,
        pd: &Pd,
        attr: &MrInitAttr<'a>,
        pages: Option<rdma::Pages<'_>>,
    ) -> Result<Self> {
        let mut pages = pages.ok_or(EOPNOTSUPP)?;
        let (page_size, count) = (pages.page_size(), pages.count());
        if count > efa.attributes().queues.max_mr_pages as usize {
            return Err(ENOMEM);
        }
        let dev = efa.session.device().dev();
        let (place, list) = Pages::new(dev, count, |part| pages.fill(part))?;
        let list = match list {
            Some(list) => {
                let list = Arc::new(list, GFP_KERNEL)?;
                Some(Lent::new(efa.session.epoch(), &"a list of pages", list)?)
            }
            None => None,
        };

        let mut command = RegMr {
            pd: pd.pdn,
            mr_length: attr.length,
            flags: RegMrFlags {
                // CAST: At most 64.
                phys_page_size_shift: page_size.trailing_zeros() as u8,
                mem_addr_phy_mode_en: false,
            },
            permissions: permissions(attr.access),
            iova: attr.iova,
            ..RegMr::default()
        };
        command.set_page_list(place);
        Ok(Self {
            command,
            list,
            // CAST: At most `max_mr_pages`.
            pages: (count as u32, page_size),
        })
    }

    /// Registers the region. The device uses the list of pages only during the command.
    pub(super) fn execute(&self, efa: &Efa<'_>) -> Result<RegMrResponse, CommandError> {
        let loan = self.list.as_ref().map(Lent::loan);
        Loan::lend_any_during(loan, || efa.register_mr(&self.command))
    }
}

impl Efa<'_> {
    /// Registers a region. Its remote key differs from those of revoked regions.
    pub(super) fn register_mr(&self, command: &RegMr) -> Result<RegMrResponse, CommandError> {
        self.session
            .reclaim()
            .with_new_key(|| self.admin().execute(command), |mr| (mr.l_key, mr.r_key))
    }

    // One copy for all kinds of memory.
    #[inline(never)]
    fn deregister_mr(&self, l_key: u32) -> Result<NoData, CommandError> {
        self.admin().execute(&DeregMr { l_key })
    }
}

pub(super) fn permissions(access: Access) -> RegMrPermissions {
    let has = |flag| access.bits() & flag != 0;
    RegMrPermissions {
        local_write_enable: has(Access::LOCAL_WRITE),
        remote_write_enable: has(Access::REMOTE_WRITE),
        remote_read_enable: has(Access::REMOTE_READ),
    }
}

/// Returns a region that the device has registered, of pages of userspace: their number and size.
pub(super) fn new_region<'a>(
    registered: &RegMrResponse,
    pages: (u32, u64),
    memory: Memory<'a>,
) -> New<'a> {
    New {
        region: Mr {
            lkey: registered.l_key,
            count: pages.0,
            page_size: pages.1,
            memory,
        },
        keys: keys(registered),
        shared: interconnects(registered),
    }
}

pub(super) fn keys(registered: &RegMrResponse) -> MrKeys {
    MrKeys {
        lkey: registered.l_key,
        rkey: registered.r_key,
    }
}

/// Returns the interconnects through which the device reaches a region, as in `struct efa_mr_object`.
/// These are a mask of the valid ids, and the ids for receives, RDMA reads and RDMA writes of peers.
fn interconnects(registered: &RegMrResponse) -> [u16; 4] {
    let validity = registered.validity;
    [
        u16::from(validity.recv_ic_id)
            | u16::from(validity.rdma_read_ic_id) << 1
            | u16::from(validity.rdma_recv_ic_id) << 2,
        registered.recv_ic_id.into(),
        registered.rdma_read_ic_id.into(),
        registered.rdma_recv_ic_id.into(),
    ]
}
