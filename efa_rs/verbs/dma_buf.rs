// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions of dma-bufs, whose exporters may revoke the memory.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    mr_request::{
        keys,
        Owned,
        Request, //
    },
    pd::Pd,
    Efa, //
};
use crate::{
    com::{
        CommandError,
        KeyPlace,
        Reclaim, //
    },
    hw::admin::{
        mr::RegMrResponse,
        NoData, //
    },
    rdma::{
        self,
        MrInitAttr,
        MrKeys,
        Revocable, //
    },
};

/// Memory of a dma-buf that is pinned.
pub(super) type DmaBuf<'a> = Owned<'a, Revocable<'a, Hold<'a>>>;

/// The device's registration of the memory of a dma-buf.
pub(super) struct Hold<'a> {
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

impl<'a> Hold<'a> {
    /// Creates the state of memory that is not registered yet.
    pub(super) fn new(efa: &Efa<'a>) -> Self {
        Self {
            what: Held::Nothing,
            reclaim: efa.session.reclaim().clone(),
        }
    }
}

impl<'a> DmaBuf<'a> {
    /// Registers memory, which its exporter can't revoke meanwhile. Returns the device's response, and number
    /// and size of the pages.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if the memory was revoked.
    /// - Those of [`Request::new`] and of the admin command.
    pub(super) fn register(
        efa: &Efa<'a>,
        pd: &Pd,
        attr: &MrInitAttr<'a>,
        memory: Revocable<'a, Hold<'a>>,
    ) -> Result<(RegMrResponse, (u32, u64), Self)> {
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
        Ok((registered, request.pages, owned))
    }

    /// Deregisters the memory by the command, unless it was revoked.
    pub(super) fn deregister(&self, command: impl FnOnce() -> Result<NoData, CommandError>) {
        let mut kept = self.0.memory.keep();
        let hold = kept.hold();
        let result = match hold.what {
            Held::Nothing => Ok(NoData {}),
            Held::Revoked(r_key) => {
                hold.reclaim.forget(r_key);
                Ok(NoData {})
            }
            Held::Unknown | Held::Region(..) => command(),
        };
        if result.is_ok() {
            hold.what = Held::Nothing;
        }
        drop(kept);
        self.0.loan.settle(result);
    }
}
