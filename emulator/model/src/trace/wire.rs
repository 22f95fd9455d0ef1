// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The bytes of a command, without the values that differ between runs.
//!
//! Two drivers that issue the same command have the same bytes here, including reserved ones.

use std::fmt::Write;

use efa_hw::{
    admin::{AqEntry, AqHeaderV2, Opcode, Protocol},
    fields::{Kind, leaves},
};

use crate::layouts::fields_of;

/// Bits of an address that are the same in each run: its offset in a page.
const IN_PAGE: u64 = 0xfff;

/// Returns the bytes of an entry in hexadecimal, without trailing zeroes.
///
/// These are zero: the command's id, phase and checksum, numbers of objects, and addresses of control buffers. Only the page
/// offset of other addresses is kept.
pub(super) fn bytes(entry: &AqEntry) -> String {
    let mut masked = *entry;
    let request = entry.request();
    let start = match entry.protocol() {
        Protocol::V1 => entry.bytes().len() - request.payload.len(),
        Protocol::V2 => AqHeaderV2::SIZE,
    };
    let payload = payload(entry);
    masked.bytes_mut()[start..start + payload.len()].copy_from_slice(&payload);
    let header = &mut masked.bytes_mut()[..start];
    // The id has 12 bits. The four bits above it are reserved.
    header[0] = 0;
    header[1] &= 0xf0;
    header[3] &= !1;
    let control = request.control;
    if control.ctrl_data && control.ctrl_data_indirect {
        // An indirect page list is written as a direct one, see below.
        header[3] &= !4;
    }
    if let Some(checksum) = header.get_mut(4..6) {
        checksum.fill(0);
    }
    let length = masked.bytes().iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let mut text = String::with_capacity(2 * length);
    for byte in &masked.bytes()[..length] {
        // A write to a string can't fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Returns the masked payload. Its reserved bits are unchanged.
fn payload(entry: &AqEntry) -> [u8; efa_hw::admin::PAYLOAD_SIZE] {
    let request = entry.request();
    let mut payload = request.payload;
    let Ok(opcode) = Opcode::try_from(request.opcode) else {
        return payload;
    };
    leaves(fields_of(opcode)[0], &mut |field| match field.kind {
        Kind::Id | Kind::Key => field.put(&mut payload, 0),
        Kind::Address => field.put(&mut payload, field.get(&request.payload) & IN_PAGE),
        Kind::Bytes if opcode == Opcode::RegMr => {
            let list = &mut payload[field.bit / 8..][..field.bits / 8];
            match (request.control.ctrl_data, request.control.ctrl_data_indirect) {
                // The number of pages stays visible.
                (false, false) => list.chunks_exact_mut(8).for_each(|page| {
                    let is_used = page.iter().any(|byte| *byte != 0);
                    page.fill(0);
                    page[0] = is_used.into();
                }),
                // Whether a long list is contiguous depends on the memory that the driver allocated for it.
                (true, _) => list.fill(0),
                (false, true) => {}
            }
        }
        // The driver's own buffer may have any address.
        Kind::Hex if opcode == Opcode::SetFeature => field.put(&mut payload, 0),
        _ => {}
    });
    payload
}
