// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Address handles.
//!
//! There is one for each peer in each protection domain, so that the handle by which a completion names a
//! peer is unambiguous. Some devices let it be created again, and it exists until it is destroyed as
//! often; others refuse that.

use std::collections::HashMap;

use efa_hw::admin::{
    NoData, Status,
    ah::{CreateAh, CreateAhResponse, DestroyAh},
};

use super::table::Table;
use crate::{
    Host,
    firmware::{Execute, Failure, Firmware},
};

/// A peer as one protection domain knows it.
type Peer = (u16, [u8; 16]);

/// An address handle.
#[derive(Debug)]
struct Ah {
    peer: Peer,
    /// How often it was created and not destroyed.
    created: u32,
}

/// All address handles.
#[derive(Debug, Default)]
pub(crate) struct Ahs {
    table: Table<Ah>,
    by_peer: HashMap<Peer, u16>,
}

impl Ahs {
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Removes all, as a reset does.
    pub(super) fn end(&mut self) {
        self.table.end();
        self.by_peer.clear();
    }

    /// Whether one was looked for since the last call that a reset has ended.
    pub(super) fn take_missed(&self) -> bool {
        self.table.take_missed()
    }

    /// Address of the peer that a queue pair of `pd` knows by this handle.
    pub(crate) fn peer(&self, pd: u16, ah: u16) -> Option<[u8; 16]> {
        let ah = self.table.get(ah).ok()?;
        (ah.peer.0 == pd).then_some(ah.peer.1)
    }

    /// Handle by which `pd` knows a peer.
    pub(crate) fn find(&self, pd: u16, address: [u8; 16]) -> Option<u16> {
        self.by_peer.get(&(pd, address)).copied()
    }
}

impl Execute for CreateAh {
    fn execute(
        self,
        firmware: &mut Firmware,
        _host: &mut dyn Host,
    ) -> Result<CreateAhResponse, Failure> {
        firmware.resources.pds.get(self.pd)?;
        if self.dest_addr == [0; 16] {
            return Err(Status::IllegalParameter.into());
        }
        let peer = (self.pd, self.dest_addr);
        let ahs = &mut firmware.resources.ahs;
        if let Some(&ah) = ahs.by_peer.get(&peer) {
            if !firmware.attributes.shared_ah {
                return Err(Status::IllegalParameter.into());
            }
            let created = &mut ahs.table.get_mut(ah)?.created;
            *created = created
                .checked_add(1)
                .ok_or(Status::ResourceAllocationFailure)?;
            return Ok(CreateAhResponse { ah });
        }
        let limit = firmware.attributes.max_ah;
        let ah = ahs.table.insert(limit, Ah { peer, created: 1 })?;
        ahs.by_peer.insert(peer, ah);
        firmware.resources.pds.add_user(self.pd);
        Ok(CreateAhResponse { ah })
    }
}

impl Execute for DestroyAh {
    fn execute(self, firmware: &mut Firmware, _host: &mut dyn Host) -> Result<NoData, Failure> {
        let ahs = &mut firmware.resources.ahs;
        let ah = ahs.table.get_mut(self.ah)?;
        if ah.peer.0 != self.pd {
            return Err(Status::IllegalParameter.into());
        }
        ah.created -= 1;
        if ah.created == 0 {
            let ah = ahs.table.remove(self.ah)?;
            ahs.by_peer.remove(&ah.peer);
            firmware.resources.pds.remove_user(self.pd);
        }
        Ok(NoData {})
    }
}
