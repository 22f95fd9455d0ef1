// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Address handles of the device, one for each peer in each protection domain.
//!
//! The newest devices refuse a second one. Therefore all address handles of programs for the same
//! peer share one of the device. It is created with the first and destroyed with the last of them.

use kernel::{
    new_mutex,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        Arc,
        Mutex, //
    }, //
};

use super::{
    admin_queue::AdminQueue,
    error::CommandError, //
};
use crate::hw::admin::{
    ah::{
        CreateAh,
        DestroyAh, //
    },
    NoData, //
};

/// A peer in a protection domain. The order makes the peers of a domain adjacent in the tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Peer {
    pd: u16,
    address: [u8; 16],
}

/// The device's address handle for a peer.
#[pin_data]
pub(crate) struct PeerAh {
    peer: Peer,
    /// Its number in the device, if any. Locked during the commands that create and destroy it.
    #[pin]
    number: Mutex<Option<u16>>,
}

/// An address handle, and the number of its users.
struct Entry {
    ah: Arc<PeerAh>,
    /// Number of address handles of programs, including those being created or destroyed.
    users: usize,
}

#[pin_data]
pub(crate) struct AhCache<'bound> {
    admin: Arc<AdminQueue<'bound>>,
    /// Held briefly, and not during commands. Taken after [`PeerAh::number`] if both are held.
    #[pin]
    entries: Mutex<RBTree<Peer, Entry>>,
}

impl<'bound> AhCache<'bound> {
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(admin: &Arc<AdminQueue<'bound>>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                admin: admin.clone(),
                entries <- new_mutex!(RBTree::new()),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the address handle for a peer, and its number. Creates it in the device if
    /// necessary. The caller releases it by [`Self::destroy`].
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of the admin command.
    pub(crate) fn create(&self, pd: u16, address: [u8; 16]) -> Result<(Arc<PeerAh>, u16)> {
        let ah = self.enter(Peer { pd, address })?;

        let mut number = ah.number.lock();
        let created = match *number {
            Some(number) => number,
            None => {
                let command = CreateAh {
                    dest_addr: address,
                    pd,
                };
                let created = self.admin.execute(&command);
                created.inspect_err(|_| self.leave(&ah.peer, true))?.ah
            }
        };
        *number = Some(created);
        drop(number);
        Ok((ah, created))
    }

    /// Releases an address handle. The last user's release destroys it in the device.
    ///
    /// A handle that the device refuses to destroy remains for the next user.
    ///
    /// # Errors
    ///
    /// Those of the admin command.
    pub(crate) fn destroy(&self, ah: &PeerAh) -> Result<NoData, CommandError> {
        let mut number = ah.number.lock();
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(&ah.peer).filter(|entry| entry.users > 1) {
            entry.users -= 1;
            return Ok(NoData {});
        }
        drop(entries);
        // A new user waits for this lock, and then sees the result of the command.
        let result = match *number {
            Some(number) => self.admin.execute(&DestroyAh {
                ah: number,
                pd: ah.peer.pd,
            }),
            None => Ok(NoData {}),
        };
        if result.is_ok() {
            *number = None;
        }
        self.leave(&ah.peer, result.is_ok());
        result
    }

    /// Discards the handles that the device has refused to destroy in a protection domain. The
    /// domain is about to be deallocated, after which its number may be reused.
    pub(crate) fn forget(&self, pd: u16) {
        let first = Peer {
            pd,
            address: [0; 16],
        };
        let mut entries = self.entries.lock();
        while let Some(cursor) = entries.cursor_lower_bound_mut(&first) {
            if cursor.current().0.pd != pd {
                break;
            }
            cursor.remove_current();
        }
    }

    /// Adds a user of the address handle for `peer`, which may not exist in the device yet.
    fn enter(&self, peer: Peer) -> Result<Arc<PeerAh>> {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(&peer) {
            entry.users += 1;
            return Ok(entry.ah.clone());
        }

        let ah = Arc::pin_init(
            pin_init!(PeerAh {
                peer,
                number <- new_mutex!(None),
            }),
            GFP_KERNEL,
        )?;
        let entry = Entry {
            ah: ah.clone(),
            users: 1,
        };
        entries.insert(RBTreeNode::new(peer, entry, GFP_KERNEL)?);
        Ok(ah)
    }

    /// Removes a user. Discards the address handle if it was the last user and `is_gone`.
    fn leave(&self, peer: &Peer, is_gone: bool) {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(peer) {
            entry.users -= 1;
            if entry.users == 0 && is_gone {
                entries.remove(peer);
            }
        }
    }
}
