// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The bytes of a command, without the values that differ between runs.
//!
//! Two drivers that issue the same command have the same bytes here, including reserved ones.

use std::fmt::Write;

use efa_hw::{
    admin::{
        AqEntry, AqHeaderV2, Command, Opcode, Protocol, ah, control::CtrlBuffInfo, cq, eq,
        event_counter, mr, pd, qp, uar,
    },
    features::SetFeature,
};

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
    let length = masked
        .bytes()
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
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
    let Ok(opcode) = Opcode::try_from(request.opcode) else {
        return request.payload;
    };
    /// Decodes a command, changes it, and encodes it again with its original reserved bits.
    macro_rules! changed {
        ($command:ty, $change:expr) => {{
            let mut command = <$command>::from_request(&request);
            let known = command.to_request().payload;
            let change: fn(&mut $command) = $change;
            change(&mut command);
            let mut payload = command.to_request().payload;
            for (byte, (had, known)) in payload.iter_mut().zip(request.payload.iter().zip(known)) {
                *byte |= had & !known;
            }
            payload
        }};
    }
    match opcode {
        Opcode::CreateQp => changed!(qp::CreateQp, |command| {
            command.pd = 0;
            command.uar = 0;
            command.send_cq_idx = 0;
            command.recv_cq_idx = 0;
            command.rq_base_addr &= IN_PAGE;
        }),
        Opcode::ModifyQp => changed!(qp::ModifyQp, |command| command.qp_handle = 0),
        Opcode::QueryQp => changed!(qp::QueryQp, |command| command.qp_handle = 0),
        Opcode::DestroyQp => changed!(qp::DestroyQp, |command| command.qp_handle = 0),
        Opcode::CreateAh => changed!(ah::CreateAh, |command| command.pd = 0),
        Opcode::DestroyAh => changed!(ah::DestroyAh, |command| {
            command.pd = 0;
            command.ah = 0;
        }),
        Opcode::RegMr => changed!(mr::RegMr, |command| {
            command.pd = 0;
            command.iova &= IN_PAGE;
            match command.page_list() {
                Some(mr::PageList::Inline(pages)) => {
                    // The number of pages stays visible.
                    let pages = pages.map(|page| u64::from(page != 0));
                    command.set_page_list(mr::PageList::Inline(pages));
                }
                // Whether a long list is contiguous depends on the memory that the driver allocated for it.
                Some(mr::PageList::Direct(_) | mr::PageList::Indirect(_)) => {
                    command.set_page_list(mr::PageList::Direct(CtrlBuffInfo::default()));
                }
                None => {}
            }
        }),
        Opcode::DeregMr => changed!(mr::DeregMr, |command| command.l_key = 0),
        Opcode::CreateCq => changed!(cq::CreateCq, |command| {
            command.uar = 0;
            command.eqn = 0;
            command.base_address &= IN_PAGE;
        }),
        Opcode::DestroyCq => changed!(cq::DestroyCq, |command| command.cq_idx = 0),
        Opcode::SetFeature => changed!(SetFeature, |command| {
            // The driver's own buffer may have any address.
            command.control_buffer.address = 0;
        }),
        Opcode::DeallocPd => changed!(pd::DeallocPd, |command| command.pd = 0),
        Opcode::DeallocUar => changed!(uar::DeallocUar, |command| command.uar = 0),
        Opcode::CreateEq => changed!(eq::CreateEq, |command| command.base_address &= IN_PAGE),
        Opcode::DestroyEq => changed!(eq::DestroyEq, |command| command.eqn = 0),
        Opcode::AllocMr => changed!(mr::AllocMr, |command| command.pd = 0),
        Opcode::CreateEventCounter => changed!(event_counter::CreateEventCounter, |command| {
            command.uar = 0;
            command.paddr &= IN_PAGE;
        }),
        Opcode::DestroyEventCounter => {
            changed!(event_counter::DestroyEventCounter, |command| command
                .cntr_handle =
                0)
        }
        // The layouts are the same.
        Opcode::AttachEventCounter | Opcode::DetachEventCounter => {
            changed!(event_counter::AttachEventCounter, |command| {
                command.cntr_handle = 0;
                command.qp_handle = 0;
            })
        }
        Opcode::ModifyEventCounter => {
            changed!(event_counter::ModifyEventCounter, |command| command
                .cntr_handle =
                0)
        }
        Opcode::GetFeature
        | Opcode::GetStats
        | Opcode::AllocPd
        | Opcode::AllocUar
        | Opcode::Service => request.payload,
    }
}
