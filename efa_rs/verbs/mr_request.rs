// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Registrations of memory, and the pinned memory behind them.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    pd::Pd,
    Efa, //
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
        MrInitAttr,
        MrKeys, //
    },
};

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
        #[cfg(not(in_tree))]
        {
            command.permissions.relaxed_ordering = cfg!(relaxed_ordering)
                && efa.attributes().device.device_caps.relaxed_ordering
                && attr.access.bits() & Access::RELAXED_ORDERING != 0;
        }
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
    pub(super) fn deregister_mr(&self, l_key: u32) -> Result<NoData, CommandError> {
        self.admin().execute(&DeregMr { l_key })
    }
}

pub(super) fn permissions(access: Access) -> RegMrPermissions {
    let has = |flag| access.bits() & flag != 0;
    RegMrPermissions {
        local_write_enable: has(Access::LOCAL_WRITE),
        remote_write_enable: has(Access::REMOTE_WRITE),
        remote_read_enable: has(Access::REMOTE_READ),
        #[cfg(not(in_tree))]
        relaxed_ordering: false,
    }
}

pub(super) fn keys(registered: &RegMrResponse) -> MrKeys {
    MrKeys {
        lkey: registered.l_key,
        rkey: registered.r_key,
    }
}
