// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Address handles.
//!
//! A protection domain has at most one for each peer, so that the handle in a completion is unambiguous.
//! Some devices let a driver create it again, and it exists until it is destroyed as often. Others refuse
//! that.

use std::collections::HashMap;

use efa_hw::admin::{
    NoData, Status,
    ah::{CreateAh, CreateAhResponse, DestroyAh},
};

use super::{pd::Pds, table::Table};
use crate::{ensure, profile::attributes::Attributes};

/// Protection domain and address of a peer.
type Peer = (u16, [u8; 16]);

/// An address handle.
#[derive(Debug)]
pub(crate) struct Ah {
    peer: Peer,
    /// Number of creations, minus that of destructions.
    created: u32,
}

/// All address handles.
#[derive(Debug, Default)]
pub(crate) struct Ahs {
    pub(super) table: Table<Ah>,
    by_peer: HashMap<Peer, u16>,
}

impl Ahs {
    /// Removes all address handles, as a reset does.
    pub(super) fn end(&mut self) {
        self.table.end();
        self.by_peer.clear();
    }

    /// Returns the address of the peer of a handle, if the handle belongs to `pd`.
    pub(crate) fn peer(&self, pd: u16, ah: u16) -> Option<[u8; 16]> {
        let ah = self.table.get(ah).ok()?;
        (ah.peer.0 == pd).then_some(ah.peer.1)
    }

    /// Returns the handle of a peer in `pd`.
    pub(crate) fn find(&self, pd: u16, address: [u8; 16]) -> Option<u16> {
        self.by_peer.get(&(pd, address)).copied()
    }

    pub(crate) fn create(
        &mut self,
        attributes: &Attributes,
        pds: &mut Pds,
        command: &CreateAh,
    ) -> Result<CreateAhResponse, Status> {
        pds.get(command.pd)?;
        ensure(command.dest_addr != [0; 16], Status::IllegalParameter)?;
        let peer = (command.pd, command.dest_addr);
        if let Some(&ah) = self.by_peer.get(&peer) {
            ensure(attributes.shared_ah, Status::IllegalParameter)?;
            let created = &mut self.table.get_mut(ah)?.created;
            *created = created.checked_add(1).ok_or(Status::ResourceAllocationFailure)?;
            return Ok(CreateAhResponse { ah });
        }
        let ah = self.table.insert(attributes, attributes.max_ah, Ah { peer, created: 1 })?;
        self.by_peer.insert(peer, ah);
        pds.add_user(command.pd);
        Ok(CreateAhResponse { ah })
    }

    pub(crate) fn destroy(&mut self, pds: &mut Pds, command: &DestroyAh) -> Result<NoData, Status> {
        let ah = self.table.get_mut(command.ah)?;
        ensure(ah.peer.0 == command.pd, Status::IllegalParameter)?;
        ah.created -= 1;
        if ah.created == 0 {
            let ah = self.table.remove(command.ah)?;
            self.by_peer.remove(&ah.peer);
            pds.remove_user(command.pd);
        }
        Ok(NoData {})
    }
}
