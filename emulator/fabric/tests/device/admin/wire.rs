// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The bytes of commands by which drivers are compared.

use super::*;

fn wire(entry: &AqEntry) -> String {
    let event = TraceEvent::Command { command: *entry, completion: None, in_flight: 1, injected: false };
    event.wire().expect("it is a command")
}

/// The file has the bits that differ from run to run, and are not in the trace: ids, phases, checksums, numbers of objects, and
/// addresses without their offset in a page.
#[test]
fn all_bits_that_do_not_differ_between_runs_are_present() {
    let mut expected = include_str!("wire.txt").lines();
    for opcode in Opcode::ALL {
        for protocol in [Protocol::V1, Protocol::V2] {
            let request = AqRequest { opcode: (*opcode).into(), ..AllocPd {}.to_request() };
            let entry = AqEntry::new(protocol, &request, 0, false);
            let before = wire(&entry);
            let is_hidden = |bit: &usize| {
                let mut changed = entry;
                changed.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
                // Bits of the opcode make it another command.
                bit / 8 != 2 && wire(&changed) == before
            };
            let bits: Vec<_> = (0..8 * entry.bytes().len()).filter(is_hidden).collect();
            let ranges = bits.chunk_by(|bit, next| bit + 1 == *next);
            let texts = ranges.map(|range| format!(" {}+{}", range[0], range.len()));
            let line = format!("{opcode} {protocol:?}:{}", texts.collect::<String>());
            assert_eq!(expected.next(), Some(&*line));
        }
    }
    assert_eq!(expected.next(), None);
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
