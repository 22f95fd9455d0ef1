// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    pd::Pd,
    Efa,
    Verbs, //
};
use crate::{
    com::{
        CommandError,
        KeyPlace,
        Lent,
        Loan,
        Pages,
        Reclaim, //
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
        Revocable,
        Udata,
        Umem, //
    },
};

#[cfg(kverbs)]
use {
    super::abi::KEY_GENERATION,
    crate::{
        hw::{
            admin::mr::AllocMr,
            io::{
                FastMrRegFlags,
                FastMrRegReq,
                PblMode, //
            },
        },
        rdma::MrRegistration,
        sys::{
            atomic::{
                AtomicU32,
                AtomicU64,
                Relaxed, //
            },
            dma::Entries, //
        }, //
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
    DmaBuf(Owned<'a, Revocable<'a, Hold<'a>>>),
    /// All memory that the device can address.
    #[cfg(kverbs)]
    All,
    /// Pages that work requests set (fast registration).
    #[cfg(kverbs)]
    Fast(KBox<FastPages<'a>>),
}

/// Pinned memory with its state for the device: one allocation of 32 bytes for memory of a process.
#[pin_data]
struct Pinned<'a, T> {
    memory: T,
    loan: Loan<'a>,
}

/// The owner of pinned memory.
struct Owned<'a, T: Send + Sync + 'a>(Arc<Pinned<'a, T>>);

impl<'a, T: Send + Sync + 'a> Owned<'a, T> {
    /// Takes memory that the device does not use yet.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    fn new(efa: &Efa<'a>, memory: T) -> Result<Self> {
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

/// The device's registration of the memory of a dma-buf.
struct Hold<'a> {
    what: Held,
    reclaim: Arc<Reclaim<'a>>,
}

enum Held {
    /// None: the memory was not registered yet, or was released.
    Nothing,
    /// Possibly a region: the device has not completed the registration.
    Unknown,
    /// A region with these keys, and until it is revoked, memory for recording the remote key.
    Region(MrKeys, Option<KeyPlace>),
    /// None: the memory was revoked. The region had this remote key.
    Revoked(u32),
}

impl rdma::Hold for Hold<'_> {
    fn revoke(&mut self) {
        match &mut self.what {
            Held::Nothing | Held::Revoked(_) => (),
            Held::Unknown => self.reclaim.halt_device(),
            Held::Region(keys, place) => {
                let keys = *keys;
                // Before the deregistration, so that no other region gets the key in between.
                if let Some(place) = place.take() {
                    self.reclaim.keep(keys.rkey, place);
                }
                if self.reclaim.deregister(keys.lkey) {
                    self.what = Held::Revoked(keys.rkey);
                }
            }
        }
    }
}

/// Pages for the next fast registration, which is a work request.
#[cfg(kverbs)]
struct FastPages<'a> {
    /// Bus addresses of the pages.
    list: Lent<'a, Entries<'a, { size_of::<u64>() }>>,
    /// Maximum number of pages.
    max: u32,
    /// Local key of the last registration by a work request.
    lkey: AtomicU32,
    /// Bytes of a page.
    page_size: AtomicU32,
    /// Number of pages.
    count: AtomicU32,
    /// Bus address of the first page.
    first: AtomicU64,
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
            pages.count.store(0, Relaxed);
            pages.page_size.store(page_size, Relaxed);
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
            Memory::DmaBuf(owned) => {
                let mut kept = owned.0.memory.keep();
                let result = match kept.hold().what {
                    Held::Nothing => Ok(NoData {}),
                    Held::Revoked(r_key) => {
                        efa.session.reclaim().forget(r_key);
                        Ok(NoData {})
                    }
                    Held::Unknown | Held::Region(..) => deregister(),
                };
                if result.is_ok() {
                    kept.hold().what = Held::Nothing;
                }
                drop(kept);
                owned.0.loan.settle(result);
            }
            #[cfg(kverbs)]
            Memory::All => efa.session.epoch().settle(deregister()),
            #[cfg(kverbs)]
            Memory::Fast(pages) => {
                let result = deregister();
                if result.is_ok() {
                    pages.list.loan().mark_released();
                }
                // A work request may have registered memory of the client.
                efa.session.epoch().settle_now(result);
            }
        }
    }
}

/// A new memory region.
type New<'a> = NewMr<Mr<'a>, [u16; 4]>;

impl<'a> Mr<'a> {
    /// Returns the current local key.
    fn lkey(&self) -> u32 {
        #[cfg(kverbs)]
        if let Memory::Fast(pages) = &self.memory {
            return pages.lkey.load(Relaxed);
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

        let hold = || Hold {
            what: Held::Nothing,
            reclaim: efa.session.reclaim().clone(),
        };
        match attr.pin(hold)? {
            PinnedMemory::Process(memory) => Self::register_process(efa, pd, attr, memory),
            PinnedMemory::DmaBuf(memory) => Self::register_dma_buf(efa, pd, attr, memory),
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
        Ok(new(&registered, request.pages, Memory::Process(owned)))
    }

    /// Creates a memory region from a dma-buf, which its exporter can't revoke meanwhile.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if the memory was revoked.
    /// - Those of [`Self::register`].
    fn register_dma_buf(
        efa: &Efa<'a>,
        pd: &Pd,
        attr: &MrInitAttr<'a>,
        memory: Revocable<'a, Hold<'a>>,
    ) -> Result<New<'a>> {
        let owned = Owned::new(efa, memory)?;
        // Prevents a revocation until the device has completed the registration.
        let mut kept = owned.0.memory.keep();

        let pages = kept.divide(efa.attributes().device.page_size_cap, attr.iova)?;
        let request = Request::new(efa, pd, attr, pages)?;
        let place = KeyPlace::new(GFP_KERNEL)?;
        kept.hold().what = Held::Unknown;
        let registered = owned
            .0
            .loan
            .lend(|| request.execute(efa))
            .inspect_err(|error| {
                if !error.device_may_use_memory() {
                    kept.hold().what = Held::Nothing;
                }
            })?;
        kept.hold().what = Held::Region(keys(&registered), Some(place));
        drop(kept);
        Ok(new(&registered, request.pages, Memory::DmaBuf(owned)))
    }

    /// Creates a region of at most `max_pages` pages, for clients in the kernel.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if `max_pages` is 0, or more than a region can have.
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of the admin command.
    #[cfg(kverbs)]
    fn alloc_fast(efa: &Efa<'a>, pd: &Pd, max_pages: u32) -> Result<New<'a>> {
        if max_pages == 0 || max_pages > efa.attributes().queues.max_mr_pages {
            return Err(EINVAL);
        }
        let count = max_pages.checked_next_power_of_two().ok_or(EINVAL)?;
        let list = Entries::zeroed(efa.session.device().dev(), count)?;
        let list = Arc::new(list, GFP_KERNEL)?;
        let pages = FastPages {
            list: Lent::new(efa.session.epoch(), &"a list of pages", list)?,
            max: max_pages,
            lkey: AtomicU32::new(0),
            page_size: AtomicU32::new(0),
            count: AtomicU32::new(0),
            first: AtomicU64::new(0),
        };
        let pages = KBox::new(pages, GFP_KERNEL)?;
        // From here on, work requests may have the address of the list.
        let command = AllocMr {
            pd: pd.pdn,
            max_pages,
        };
        let alloc = || efa.admin().execute(&command);
        let allocated = pages.list.loan().lend(|| {
            efa.session
                .reclaim()
                .with_new_key(alloc, |mr| (mr.l_key, mr.r_key))
        })?;
        pages.lkey.store(allocated.l_key, Relaxed);
        Ok(New {
            region: Self {
                lkey: allocated.l_key,
                count: max_pages,
                page_size: 0,
                memory: Memory::Fast(pages),
            },
            keys: MrKeys {
                lkey: allocated.l_key,
                rkey: allocated.r_key,
            },
            shared: [0; 4],
        })
    }

    /// Converts a registration by a work request, of pages that were added before.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the region is not for fast registration.
    /// - [`EINVAL`] if its keys have changed in more than the generation.
    /// - [`EINVAL`] if the pages do not cover the length, or the access is not supported.
    #[cfg(kverbs)]
    pub(super) fn fast_reg(&self, wr: &MrRegistration<'_, Self>) -> Result<FastMrRegReq> {
        let Memory::Fast(pages) = &self.memory else {
            return Err(EINVAL);
        };
        let (access, lkey, iova, mr_length) = (wr.access(), wr.lkey(), wr.iova(), wr.length());
        let supported = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        // The core's own convention for keys changes bits that identify the region.
        if access.required() & !supported != 0 || (lkey ^ self.lkey) & !KEY_GENERATION != 0 {
            return Err(EINVAL);
        }
        let count = pages.count.load(Relaxed);
        let shift = pages
            .page_size
            .load(Relaxed)
            .checked_ilog2()
            .ok_or(EINVAL)?;
        let end = (iova % (1 << shift)).checked_add(mr_length).ok_or(EINVAL)?;
        if count == 0 || end.div_ceil(1 << shift) > count.into() {
            return Err(EINVAL);
        }
        pages.lkey.store(lkey, Relaxed);
        let (pbl_mode, pbl) = match count {
            1 => (PblMode::Inline, pages.first.load(Relaxed)),
            _ => (PblMode::Direct, pages.list.dma_address()),
        };
        Ok(FastMrRegReq {
            lkey,
            permissions: permissions(access),
            flags: FastMrRegFlags {
                // CAST: Less than 32.
                phys_page_size_shift: shift as u8,
                pbl_mode: pbl_mode.into(),
            },
            iova,
            mr_length,
            pbl,
        })
    }

    /// Creates a region of all memory that the device can address, for clients in the kernel.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if remote access is requested.
    /// - Those of the admin command.
    #[cfg(kverbs)]
    fn register_all(efa: &Efa<'a>, pd: &Pd, access: Access) -> Result<New<'a>> {
        if access.required() & !Access::LOCAL_WRITE != 0 {
            return Err(EOPNOTSUPP);
        }
        let registered = efa.register_mr(&RegMr {
            pd: pd.pdn,
            mr_length: efa.session.device().memory_size(),
            flags: RegMrFlags {
                phys_page_size_shift: 0,
                mem_addr_phy_mode_en: true,
            },
            // Local writes at most, as checked above.
            permissions: permissions(access),
            ..RegMr::default()
        })?;
        Ok(new(&registered, (0, 0), Memory::All))
    }
}

/// A registration of userspace memory, before it is submitted to the device.
struct Request<'a> {
    command: RegMr,
    /// The list of pages, if it is not in the command itself.
    list: Option<Lent<'a, Pages>>,
    /// Number and size of the pages.
    pages: (u32, u64),
}

impl<'a> Request<'a> {
    /// Prepares the registration of `pages`; these are `None` if no page size of the device fits.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if `pages` is `None`.
    /// - [`ENOMEM`] if the device's limit on pages is exceeded, or there is no memory for the list.
    fn new(
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
    fn execute(&self, efa: &Efa<'_>) -> Result<RegMrResponse, CommandError> {
        let loan = self.list.as_ref().map(Lent::loan);
        Loan::lend_any_during(loan, || efa.register_mr(&self.command))
    }
}

impl Efa<'_> {
    /// Registers a region. Its remote key differs from those of revoked regions.
    fn register_mr(&self, command: &RegMr) -> Result<RegMrResponse, CommandError> {
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

#[cfg(kverbs)]
impl FastPages<'_> {
    /// Adds a page.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if the maximum number of pages is reached.
    fn add(&self, addr: u64) -> Result {
        let count = self.count.load(Relaxed);
        if count == self.max {
            return Err(ENOMEM);
        }
        if count == 0 {
            self.first.store(addr, Relaxed);
        }
        self.list.write(count, &addr.to_le_bytes());
        self.count.store(count + 1, Relaxed);
        Ok(())
    }
}

fn permissions(access: Access) -> RegMrPermissions {
    let has = |flag| access.bits() & flag != 0;
    RegMrPermissions {
        local_write_enable: has(Access::LOCAL_WRITE),
        remote_write_enable: has(Access::REMOTE_WRITE),
        remote_read_enable: has(Access::REMOTE_READ),
    }
}

/// Returns a region that the device has registered, of pages of userspace: their number and size.
fn new<'a>(registered: &RegMrResponse, pages: (u32, u64), memory: Memory<'a>) -> New<'a> {
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

fn keys(registered: &RegMrResponse) -> MrKeys {
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
