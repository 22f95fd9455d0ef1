// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions.

use kernel::prelude::*;

use super::{
    dma_buf::{
        DmaBuf,
        Hold, //
    },
    mr_request::{
        keys,
        Owned,
        Request, //
    },
    pd::Pd,
    Efa,
    Verbs, //
};
use crate::{
    hw::admin::mr::RegMrResponse,
    rdma::{
        self,
        Access,
        Details,
        MrInitAttr,
        NewMr,
        PinnedMemory,
        Udata,
        Umem, //
    },
};

#[cfg(kverbs)]
use {
    super::kernel_mr::{
        register_all,
        FastPages, //
    },
    crate::{
        hw::io::FastMrRegReq,
        rdma::MrRegistration, //
    },
};

/// A memory region.
///
/// The core's object and this fit into 256 bytes, one of the allocator's sizes.
pub(crate) struct Mr<'a> {
    /// Local key at first. Work requests may change that of a region for fast registration.
    lkey: u32,
    /// Number of pages, at most.
    count: u32,
    /// Bytes of a page of userspace.
    page_size: u64,
    memory: Memory<'a>,
}

/// The memory of a memory region.
enum Memory<'a> {
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
        register_all(efa, pd, access)
            .map(|registered| new_region(&registered, (0, 0), Memory::All))
            .inspect_err(|_| efa.errors.get_dma_mr_err.increment())
    }

    #[cfg(kverbs)]
    fn alloc(device: &rdma::Device<Efa<'a>>, pd: &Pd, max_pages: u32) -> Result<New<'a>> {
        let efa = device.data();
        FastPages::alloc(efa, pd, max_pages)
            .map(|(pages, keys)| New {
                region: Self {
                    lkey: keys.lkey,
                    count: max_pages,
                    page_size: 0,
                    memory: Memory::Fast(pages),
                },
                keys,
                shared: [0; 4],
            })
            .inspect_err(|_| efa.errors.alloc_mr_err.increment())
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
type New<'a> = NewMr<Mr<'a>, [u16; 4]>;

impl<'a> Mr<'a> {
    fn lkey(&self) -> u32 {
        #[cfg(kverbs)]
        if let Memory::Fast(pages) = &self.memory {
            return pages.lkey();
        }
        self.lkey
    }

    /// Converts a registration by a work request, of pages that were added before.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the region is not for fast registration.
    /// - Those of [`FastPages::convert`].
    #[cfg(kverbs)]
    pub(super) fn fast_reg(&self, wr: &MrRegistration<'_, Self>) -> Result<FastMrRegReq> {
        match &self.memory {
            Memory::Fast(pages) => pages.convert(self.lkey, wr),
            _ => Err(EINVAL),
        }
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
            PinnedMemory::DmaBuf(memory) => {
                let (registered, pages, owned) = DmaBuf::register(efa, pd, attr, memory)?;
                Ok(new_region(&registered, pages, Memory::DmaBuf(owned)))
            }
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

/// Returns a region that the device has registered, of pages of userspace: their number and size.
fn new_region<'a>(registered: &RegMrResponse, pages: (u32, u64), memory: Memory<'a>) -> New<'a> {
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
