// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    pd::Pd,
    Efa, //
};
use crate::{
    com::Pages,
    hw::admin::mr::{
        RegMr,
        RegMrFlags,
        RegMrPermissions,
        RegMrResponse, //
    },
    rdma::{
        Access,
        Details,
        Interconnects,
        MrRequest,
        NewMr,
        Udata,
        Umem, //
    },
    sys::errno::eopnotsupp,
};

/// A memory region.
pub(crate) struct Mr(Arc<Umem>);

/// Creates a memory region.
///
/// # Errors
///
/// - `EOPNOTSUPP` if it is to be used in a way that is not supported, or if none of the device's page
///   sizes fits.
/// - [`ENOMEM`] if there is no memory.
/// - Those of pinning memory, of the admin command and of [`Udata`].
pub(super) fn register(
    efa: &Efa,
    pd: &Pd,
    request: &MrRequest,
    udata: &Udata<'_>,
) -> Result<NewMr<Mr>> {
    let device = &efa.attributes.device;

    if request.has_dmah {
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
    if request.access.required() & !supported != 0 {
        return Err(eopnotsupp());
    }

    let umem = Arc::new(request.pin()?, GFP_KERNEL)?;
    let page_size = umem
        .best_page_size(device.page_size_cap, request.iova)
        .ok_or_else(eopnotsupp)?;
    let mut addresses = umem.pages(page_size);
    let pages = Pages::new(request.dma_device(), umem.page_count(page_size), |pages| {
        addresses.fill(pages)
    })?;

    let has = |flag| request.access.bits() & flag != 0;
    let mut command = RegMr {
        pd: pd.pdn,
        mr_length: request.length,
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
        iova: request.iova,
        ..RegMr::default()
    };
    command.set_page_list(pages.list());

    match efa.admin.register_mr(&command) {
        Ok(registered) => Ok(NewMr {
            lkey: registered.l_key,
            rkey: registered.r_key,
            details: Details {
                names: &[c"page_size", c"pages"],
                values: [page_size, umem.page_count(page_size) as u64],
            },
            interconnects: interconnects(&registered),
            data: Mr(umem),
        }),
        Err(error) => {
            if error.device_may_use_memory() {
                efa.admin
                    .quarantine()
                    .keep(efa.admin.dev(), "a memory region", (umem, pages));
            }
            Err(error.into())
        }
    }
}

/// Returns the interconnects as userspace is told of them.
fn interconnects(registered: &RegMrResponse) -> Interconnects {
    let validity = registered.validity;

    Interconnects {
        validity: u16::from(validity.recv_ic_id)
            | u16::from(validity.rdma_read_ic_id) << 1
            | u16::from(validity.rdma_recv_ic_id) << 2,
        recv: registered.recv_ic_id.into(),
        rdma_read: registered.rdma_read_ic_id.into(),
        rdma_recv: registered.rdma_recv_ic_id.into(),
    }
}

/// Destroys a memory region.
///
/// If the device does not answer, nothing more can be asked of it, and the memory stays pinned until
/// it is reset.
///
/// # Errors
///
/// Those of the admin command if the device refuses or was not told; the region lives on.
pub(super) fn deregister(efa: &Efa, mr: &Mr, lkey: u32) -> Result {
    match efa.admin.deregister_mr(lkey) {
        Err(error) if error.is_final() => {
            efa.admin
                .quarantine()
                .keep(efa.admin.dev(), "a memory region", mr.0.clone());
            Ok(())
        }
        result => Ok(result?),
    }
}
