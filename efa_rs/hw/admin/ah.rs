// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands for address handles.

use super::*;

layout! {
    /// Creates an address handle.
    pub struct CreateAh[60] {
        /// Address of the peer, a GID in network byte order.
        dest_addr @ 0: [u8; 16] as Gid,
        /// Protection domain of the handle.
        pd @ 16: u16 as Id,
    }
}

layout! {
    /// The new address handle.
    pub struct CreateAhResponse[64] {
        /// Number of the address handle.
        ah @ 8: u16 as Id,
    }
}

command!(Opcode::CreateAh, CreateAh => CreateAhResponse);

layout! {
    /// Destroys an address handle.
    pub struct DestroyAh[60] {
        /// Number of the address handle.
        ah @ 0: u16 as Id,
        /// Protection domain of the handle.
        pd @ 2: u16 as Id,
    }
}

command!(Opcode::DestroyAh, DestroyAh => NoData);
