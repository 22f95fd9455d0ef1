// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands for address handles.

use super::{
    super::{
        admin,
        wire::{
            self,
            layout, //
        }, //
    },
    command,
    NoData,
    Opcode, //
};

layout! {
    /// Creates an address handle.
    pub struct CreateAh[64] {
        /// Address of the peer, a GID in network byte order.
        dest_addr @ 4: [u8; 16],
        /// Protection domain of the handle.
        pd @ 20: u16,
    }
}

layout! {
    /// The new address handle.
    pub struct CreateAhResponse[64] {
        /// Its number.
        ah @ 8: u16,
    }
}

command!(Opcode::CreateAh, CreateAh => CreateAhResponse);

layout! {
    /// Destroys an address handle.
    pub struct DestroyAh[64] {
        /// Its number.
        ah @ 4: u16,
        /// Protection domain of the handle.
        pd @ 6: u16,
    }
}

command!(Opcode::DestroyAh, DestroyAh => NoData);
