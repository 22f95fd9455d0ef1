// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The bytes of commands by which drivers are compared.

use super::*;

/// Bits of a payload that differ from run to run: numbers of objects, and addresses without their offset in a page.
const HIDDEN: [(Opcode, usize); 26] = [
    (Opcode::CreateQp, 2 * 16 + 2 * 32 + 52),
    (Opcode::ModifyQp, 32),
    (Opcode::QueryQp, 32),
    (Opcode::DestroyQp, 32),
    (Opcode::CreateAh, 16),
    (Opcode::DestroyAh, 2 * 16),
    (Opcode::RegMr, 16 + 52),
    (Opcode::DeregMr, 32),
    (Opcode::CreateCq, 2 * 16 + 52),
    (Opcode::DestroyCq, 16),
    (Opcode::GetFeature, 0),
    (Opcode::SetFeature, 64),
    (Opcode::GetStats, 0),
    (Opcode::AllocPd, 0),
    (Opcode::DeallocPd, 16),
    (Opcode::AllocUar, 0),
    (Opcode::DeallocUar, 16),
    (Opcode::CreateEq, 52),
    (Opcode::DestroyEq, 16),
    (Opcode::AllocMr, 16),
    (Opcode::Service, 0),
    (Opcode::CreateEventCounter, 16 + 52),
    (Opcode::DestroyEventCounter, 32),
    (Opcode::AttachEventCounter, 2 * 32),
    (Opcode::ModifyEventCounter, 32),
    (Opcode::DetachEventCounter, 2 * 32),
];
/// Bits of a header that differ: the id of 12 bits, the phase, and a checksum in [`Protocol::V2`].
const HEADER: usize = 12 + 1;
const CHECKSUM: usize = 16;

fn wire(entry: &AqEntry) -> String {
    let event = TraceEvent::Command {
        command: *entry,
        completion: None,
        in_flight: 1,
        injected: false,
    };
    event.wire().expect("it is a command")
}

/// An entry of a command whose payload is zero.
fn zeroed(opcode: Opcode, protocol: Protocol) -> AqEntry {
    let mut request = AllocPd {}.to_request();
    request.opcode = opcode.into();
    AqEntry::new(protocol, &request, 0, false)
}

#[test]
fn all_bits_that_do_not_differ_between_runs_are_present() {
    for (opcode, payload) in HIDDEN {
        for (protocol, header) in [(Protocol::V1, HEADER), (Protocol::V2, HEADER + CHECKSUM)] {
            let entry = zeroed(opcode, protocol);
            let before = wire(&entry);
            let bits = 0..8 * entry.bytes().len();
            let is_hidden = |bit: &usize| {
                let mut changed = entry;
                changed.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
                // Bits of the opcode make it another command.
                bit / 8 != 2 && wire(&changed) == before
            };
            let hidden = bits.filter(is_hidden).count();
            assert_eq!(hidden, header + payload, "{opcode} {protocol:?}");
        }
    }
}

#[test]
fn fields_that_differ_between_runs_are_zero() {
    let mut one = create_qp(1, 2, 3, 0x12_3456_7000);
    one.recv_cq_idx = 4;
    let mut other = create_qp(9, 8, 7, 0x65_4321_0000);
    other.recv_cq_idx = 5;
    for protocol in [Protocol::V1, Protocol::V2] {
        let one = AqEntry::new(protocol, &one.to_request(), 5, true);
        let other = AqEntry::new(protocol, &other.to_request(), 77, false);
        assert_eq!(wire(&one), wire(&other));
        assert_ne!(wire(&one), wire(&zeroed(Opcode::CreateQp, protocol)));
    }
}

#[test]
fn a_page_list_may_be_in_one_piece_or_not() {
    let (length, address) = (4096, 0x1000);
    let list = CtrlBuffInfo { length, address };
    let with = |pages| {
        let mut command = reg_mr(1, 0, 1 << 22);
        command.set_page_list(pages);
        wire(&AqEntry::new(Protocol::V1, &command.to_request(), 1, true))
    };
    let direct = with(PageList::Direct(list));
    assert_eq!(direct, with(PageList::Indirect(list)));
    assert_ne!(direct, with(PageList::Inline([0; 4])));
}

#[test]
fn an_unknown_command_has_all_of_its_bytes() {
    let mut request = AllocPd {}.to_request();
    (request.opcode, request.payload) = (200, [0x5a; PAYLOAD_SIZE]);
    let text = wire(&AqEntry::new(Protocol::V1, &request, 1, true));
    assert_eq!(text, format!("0000c800{}", "5a".repeat(PAYLOAD_SIZE)));
}
