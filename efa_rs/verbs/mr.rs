// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    abi::MrInterconnects,
    pd::Pd,
    Efa, //
};
use crate::{
    com::{
        Lent,
        Pages, //
    },
    hw::admin::mr::{
        RegMr,
        RegMrFlags,
        RegMrPermissions,
        RegMrResponse, //
    },
    rdma::{
        self,
        Access,
        MrInitAttr,
        MrKeys,
        Udata,
        Umem, //
    },
    sys::errno::eopnotsupp,
};

/// A memory region.
pub(crate) struct Mr<'a> {
    keys: MrKeys,
    memory: Lent<'a, Umem<'a>>,
    interconnects: MrInterconnects,
    details: [u64; 2],
}

#[vtable]
impl<'a> rdma::MemoryRegion<'a, Efa<'a>, Pd> for Mr<'a> {
    type Details = [u64; 2];
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

    fn keys(&self) -> MrKeys {
        self.keys
    }

    fn details(&self) -> [u64; 2] {
        self.details
    }

    fn shared(&self) -> MrInterconnects {
        self.interconnects
    }

    /// If the device does not answer, the region goes only once it is stopped.
    fn deregister(&self, device: &rdma::Device<Efa<'a>>) -> Result {
        let efa = device.data();
        let result = efa.admin().deregister_mr(self.keys.lkey);
        self.memory.settle(result)
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
            return Err(eopnotsupp());
        }
        udata.expect_no_input()?;

        let mut supported = Access::LOCAL_WRITE;
        if device.device_caps.rdma_read {
            supported |= Access::REMOTE_READ;
        }
        if device.device_caps.rdma_write {
            supported |= Access::REMOTE_WRITE;
        }
        if attr.access.required() & !supported != 0 {
            return Err(eopnotsupp());
        }

        let mut umem = attr.pin()?;
        let mut addresses = umem
            .divide(device.page_size_cap, attr.iova)
            .ok_or_else(eopnotsupp)?;
        let (page_size, count) = (addresses.page_size(), addresses.count());
        if count > queues.max_mr_pages as usize {
            return Err(ENOMEM);
        }
        let dev = efa.session.controller().dev();
        let (list, pages) = Pages::new(dev, count, |pages| addresses.fill(pages))?;

        let epoch = efa.session.epoch();
        let memory = Lent::new(epoch, "a memory region", Arc::new(umem, GFP_KERNEL)?);
        let pages = match pages {
            Some(pages) => {
                let pages = Arc::new(pages, GFP_KERNEL)?;
                Some(Lent::new(epoch, "a list of pages", pages))
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

        let register = || efa.admin().register_mr(&command);
        let registered = memory.lend(|| match &pages {
            Some(pages) => pages.lend(register).inspect(|_| pages.give_back()),
            None => register(),
        })?;

        Ok(Self {
            keys: MrKeys {
                lkey: registered.l_key,
                rkey: registered.r_key,
            },
            memory,
            interconnects: interconnects(&registered),
            details: [page_size, count as u64],
        })
    }
}

/// Returns the interconnects as userspace is told of them.
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
