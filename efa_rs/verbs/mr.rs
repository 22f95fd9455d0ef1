// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    abi::MrInterconnects,
    pd::Pd,
    Efa,
    Verbs, //
};
use crate::{
    com::{
        CommandError,
        KeyPlace,
        Lent,
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
        Revocable,
        Udata, //
    },
};

#[cfg(kverbs)]
use {
    crate::{
        hw::{
            admin::mr::AllocMr,
            io::PblMode, //
        },
        sys::dma::Entries, //
    },
    kernel::sync::atomic::{
        Atomic,
        Relaxed, //
    },
};

/// A memory region.
pub(crate) struct Mr<'a> {
    keys: MrKeys,
    memory: Memory<'a>,
    interconnects: MrInterconnects,
    details: Details,
}

/// What a memory region consists of.
enum Memory<'a> {
    /// Memory of a process or of a DMA buffer.
    User(Lent<'a, Revocable<'a, Hold<'a>>>),
    /// All memory that the device can address.
    #[cfg(kverbs)]
    All,
    /// What work requests give it.
    #[cfg(kverbs)]
    Fast(FastPages<'a>),
}

/// What the device has of the memory of a region.
struct Hold<'a> {
    what: Held,
    reclaim: Arc<Reclaim<'a>>,
}

enum Held {
    /// Nothing: the memory was not registered yet, or was released.
    Nothing,
    /// It may have something, as it has not completed the registration.
    Unknown,
    /// A region with these keys. There is a place for the remote one if it can be revoked.
    Region(MrKeys, Option<KeyPlace>),
    /// Nothing, as it was revoked. The region had this remote key.
    Revoked(u32),
}

impl rdma::Hold for Hold<'_> {
    fn revoke(&mut self) {
        match &mut self.what {
            Held::Nothing | Held::Revoked(_) => (),
            Held::Unknown => self.reclaim.by_force(),
            Held::Region(keys, place) => {
                let keys = *keys;
                // First, so that no one gets the key in between.
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

/// Pages for the next registration by a work request.
#[cfg(kverbs)]
struct FastPages<'a> {
    /// Their bus addresses.
    list: Lent<'a, Entries<'a, { size_of::<u64>() }>>,
    /// The most there can be.
    max: u32,
    /// How many there are.
    count: Atomic<u32>,
    /// The first one.
    first: Atomic<u64>,
}

#[vtable]
impl<'a> rdma::MemoryRegion<'a, Verbs> for Mr<'a> {
    type Shared = MrInterconnects;

    const DETAILS: &'static [&'static CStr] = &[c"page_size", c"pages"];

    fn register_user(
        device: &rdma::Device<Efa<'a>>,
        pd: &Pd,
        attr: &MrInitAttr<'a>,
        udata: &Udata<'_>,
    ) -> impl PinInit<Self, Error> {
        let efa = device.data();
        Self::register(efa, pd, attr, udata).inspect_err(|_| efa.errors.reg_mr_err.increment())
    }

    #[cfg(kverbs)]
    fn register_dma(
        device: &rdma::Device<Efa<'a>>,
        pd: &Pd,
        access: Access,
    ) -> impl PinInit<Self, Error> {
        let efa = device.data();
        Self::register_all(efa, pd, access).inspect_err(|_| efa.errors.get_dma_mr_err.increment())
    }

    #[cfg(kverbs)]
    fn alloc(device: &rdma::Device<Efa<'a>>, pd: &Pd, max_pages: u32) -> impl PinInit<Self, Error> {
        let efa = device.data();
        Self::alloc_fast(efa, pd, max_pages).inspect_err(|_| efa.errors.alloc_mr_err.increment())
    }

    #[cfg(kverbs)]
    fn clear_pages(&self) {
        if let Memory::Fast(pages) = &self.memory {
            pages.count.store(0, Relaxed);
        }
    }

    #[cfg(kverbs)]
    fn add_page(&self, addr: u64) -> Result {
        match &self.memory {
            Memory::Fast(pages) => pages.add(addr),
            _ => Err(EINVAL),
        }
    }

    fn keys(&self) -> MrKeys {
        self.keys
    }

    fn details(&self) -> Details {
        self.details
    }

    fn shared(&self) -> MrInterconnects {
        self.interconnects
    }

    fn deregister(&self, device: &rdma::Device<Efa<'a>>) {
        let efa = device.data();
        let command = DeregMr {
            l_key: self.keys.lkey,
        };
        let deregister = || efa.admin().execute(&command);
        match &self.memory {
            Memory::User(memory) => {
                let mut kept = memory.keep();
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
                memory.settle(result);
            }
            #[cfg(kverbs)]
            Memory::All => efa.session.epoch().settle(deregister()),
            #[cfg(kverbs)]
            Memory::Fast(pages) => pages.list.settle(deregister()),
        }
    }
}

impl<'a> Mr<'a> {
    /// Creates a memory region.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if it is to be used in a way that is not supported, or if none of the device's
    ///   page sizes fits.
    /// - [`ENOMEM`] if there is no memory, or if it has more pages than the device can have in a region.
    /// - Those of pinning memory, of the admin command and of [`Udata`].
    fn register(efa: &Efa<'a>, pd: &Pd, attr: &MrInitAttr<'a>, udata: &Udata<'_>) -> Result<Self> {
        let (device, queues) = (&efa.attributes().device, &efa.attributes().queues);

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

        let bound = efa.session.device();
        let hold = Hold {
            what: Held::Nothing,
            reclaim: efa.session.reclaim().clone(),
        };
        let memory = Arc::new(attr.pin(hold)?, GFP_KERNEL)?;
        // Until the device has said that it has the region.
        let mut kept = memory.keep();

        let mut addresses = kept
            .divide(device.page_size_cap, attr.iova)?
            .ok_or(EOPNOTSUPP)?;
        let (page_size, count) = (addresses.page_size(), addresses.count());
        if count > queues.max_mr_pages as usize {
            return Err(ENOMEM);
        }
        let (list, pages) = Pages::new(bound.dev(), count, |pages| addresses.fill(pages))?;

        let epoch = efa.session.epoch();
        let memory = Lent::new(epoch, "a memory region", memory.clone())?;
        let pages = match pages {
            Some(pages) => {
                let pages = Arc::new(pages, GFP_KERNEL)?;
                Some(Lent::new(epoch, "a list of pages", pages)?)
            }
            None => None,
        };

        let has = |flag| attr.access.bits() & flag != 0;
        let mut command = RegMr {
            pd: pd.pdn,
            mr_length: attr.length,
            flags: RegMrFlags {
                // CAST: A power of two of 64 bits.
                phys_page_size_shift: page_size.trailing_zeros() as u8,
                mem_addr_phy_mode_en: false,
            },
            permissions: RegMrPermissions {
                local_write_enable: has(Access::LOCAL_WRITE),
                remote_write_enable: has(Access::REMOTE_WRITE),
                remote_read_enable: has(Access::REMOTE_READ),
            },
            iova: attr.iova,
            ..RegMr::default()
        };
        command.set_page_list(list);

        let place = if kept.can_be_revoked() {
            Some(KeyPlace::new(GFP_KERNEL)?)
        } else {
            None
        };
        kept.hold().what = Held::Unknown;
        let register = || efa.register_mr(&command);
        let registered = memory
            .lend(|| match &pages {
                Some(pages) => pages.lend(register).inspect(|_| pages.give_back()),
                None => register(),
            })
            .inspect_err(|error| {
                if !error.device_may_use_memory() {
                    kept.hold().what = Held::Nothing;
                }
            })?;
        let keys = MrKeys {
            lkey: registered.l_key,
            rkey: registered.r_key,
        };
        kept.hold().what = Held::Region(keys, place);
        drop(kept);

        Ok(Self {
            keys,
            memory: Memory::User(memory),
            interconnects: interconnects(&registered),
            details: Details::new([page_size, count as u64]),
        })
    }

    /// Creates a region of at most so many pages, for clients in the kernel.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if that is none, or more than a region can have.
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of the admin command.
    #[cfg(kverbs)]
    fn alloc_fast(efa: &Efa<'a>, pd: &Pd, max_pages: u32) -> Result<Self> {
        if max_pages == 0 || max_pages > efa.attributes().queues.max_mr_pages {
            return Err(EINVAL);
        }
        let count = max_pages.checked_next_power_of_two().ok_or(EINVAL)?;
        let list = Entries::zeroed(efa.session.device().dev(), count)?;
        let list = Arc::new(list, GFP_KERNEL)?;
        let list = Lent::new(efa.session.epoch(), "a list of pages", list)?;
        // From here on work requests have the address of the list.
        let command = AllocMr {
            pd: pd.pdn,
            max_pages,
        };
        let alloc = || efa.admin().execute(&command);
        let allocated = list.lend(|| {
            efa.session
                .reclaim()
                .with_new_key(alloc, |mr| (mr.l_key, mr.r_key))
        })?;
        Ok(Self {
            keys: MrKeys {
                lkey: allocated.l_key,
                rkey: allocated.r_key,
            },
            memory: Memory::Fast(FastPages {
                list,
                max: max_pages,
                count: Atomic::new(0),
                first: Atomic::new(0),
            }),
            interconnects: MrInterconnects::default(),
            details: Details::new([0, max_pages.into()]),
        })
    }

    /// Returns the pages for a registration by a work request: where they are, and the one there is or the
    /// address of their list.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if it does not get its pages so, or has none.
    #[cfg(kverbs)]
    pub(super) fn fast_pages(&self) -> Result<(PblMode, u64)> {
        let Memory::Fast(pages) = &self.memory else {
            return Err(EINVAL);
        };
        Ok(match pages.count.load(Relaxed) {
            0 => return Err(EINVAL),
            1 => (PblMode::Inline, pages.first.load(Relaxed)),
            _ => (PblMode::Direct, pages.list.dma_address()),
        })
    }

    /// Creates a region of all memory that the device can address, for clients in the kernel.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if peers are to use it.
    /// - Those of the admin command.
    #[cfg(kverbs)]
    fn register_all(efa: &Efa<'a>, pd: &Pd, access: Access) -> Result<Self> {
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
            permissions: RegMrPermissions {
                local_write_enable: access.bits() & Access::LOCAL_WRITE != 0,
                ..RegMrPermissions::default()
            },
            ..RegMr::default()
        })?;
        Ok(Self {
            keys: MrKeys {
                lkey: registered.l_key,
                rkey: registered.r_key,
            },
            memory: Memory::All,
            interconnects: interconnects(&registered),
            details: Details::default(),
        })
    }
}

impl Efa<'_> {
    /// Registers a region, which has no key of a revoked one.
    fn register_mr(&self, command: &RegMr) -> Result<RegMrResponse, CommandError> {
        self.session
            .reclaim()
            .with_new_key(|| self.admin().execute(command), |mr| (mr.l_key, mr.r_key))
    }
}

#[cfg(kverbs)]
impl FastPages<'_> {
    /// Adds a page.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there are as many as there can be.
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

/// Returns the interconnects as userspace gets them.
fn interconnects(registered: &RegMrResponse) -> MrInterconnects {
    let validity = registered.validity;

    MrInterconnects {
        validity: u16::from(validity.recv_ic_id)
            | u16::from(validity.rdma_read_ic_id) << 1
            | u16::from(validity.rdma_recv_ic_id) << 2,
        recv_ic_id: registered.recv_ic_id.into(),
        rdma_read_ic_id: registered.rdma_read_ic_id.into(),
        rdma_recv_ic_id: registered.rdma_recv_ic_id.into(),
    }
}
