// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Entries of the admin queue, byte by byte, and what else the tables do not say.

use efa_hw::{
    admin::{
        self, AcqFlags, AcqHeader, AqEntry, Command, CommandId, CtrlBuffInfo, Opcode, Protocol, Status, control,
        event_counter::QpEvents,
        mr::{PageList, RegMr},
        pd::DeallocPd,
    },
    aenq::AenqGroup,
    features::{AenqConfig, FeatureId},
    io,
    regs::{Caps, Version},
    wire::Undefined,
};
use proptest::prelude::*;

/// Returns `N` bytes that are zero except for the given parts at the given offsets.
fn sparse<const N: usize>(parts: &[(usize, &[u8])]) -> [u8; N] {
    let mut bytes = [0; N];
    for (offset, part) in parts {
        bytes[*offset..*offset + part.len()].copy_from_slice(part);
    }
    bytes
}

#[test]
fn page_lists_of_a_memory_region() {
    let mut command = RegMr { pd: 0x0102, page_num: 0x2122_2324, ..RegMr::default() };
    let buffer = CtrlBuffInfo { length: 0x0102_0304, address: 0x0506_0708_090a_0b0c };
    let reference: &[u8] = &[4, 3, 2, 1, 12, 11, 10, 9, 8, 7, 6, 5];
    let inline =
        [[8, 7, 6, 5, 4, 3, 2, 1], [2, 0, 0, 0, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0, 0, 0], [4, 0, 0, 0, 0, 0, 0, 0]]
            .concat();
    for (pages, flags, bytes) in [
        (PageList::Inline([0x0102_0304_0506_0708, 2, 3, 4]), 0, inline.as_slice()),
        (PageList::Direct(buffer), 0b010, reference),
        (PageList::Indirect(buffer), 0b110, reference),
    ] {
        command.set_page_list(pages);
        let request = command.to_request();
        let (older, newer) =
            (AqEntry::new(Protocol::V1, &request, 0, false), AqEntry::new(Protocol::V2, &request, 0, false));
        let expected: [u8; 64] = sparse(&[(2, &[7, flags]), (4, &[2, 1]), (8, bytes), (52, &[0x24, 0x23, 0x22, 0x21])]);
        assert_eq!(older.bytes(), expected);
        assert_eq!(newer.bytes()[..4], expected[..4]);
        assert_eq!(newer.bytes()[6..12], [0; 6]);
        assert_eq!(newer.bytes()[12..72], expected[4..]);
        assert_eq!(newer.bytes()[72..], [0; 56]);
        for entry in [older, newer] {
            assert_eq!(RegMr::from_request(&entry.request()), command);
        }
        assert_eq!(command.page_list(), Some(pages));
    }
    command.control.ctrl_data = false;
    assert_eq!(command.page_list(), None);
    assert_eq!(buffer.encode(), reference);
}

#[test]
fn header_of_a_completion() {
    let header = AcqHeader {
        command_id: CommandId { id: 0x0123 },
        status: Status::ResourceBusy.into(),
        flags: AcqFlags { phase: true },
        checksum: 0x0405,
    };
    let mut entry = [0xff; 64];
    header.put(&mut entry);
    assert_eq!(entry[..8], [0x23, 0x01, 7, 1, 5, 4, 0, 0]);
    assert_eq!(entry[8..], [0xff; 56]);
    assert_eq!(AcqHeader::of(&entry), header);
}

/// Format of commands for each interface version, and size of its entries.
#[test]
fn protocols() {
    for (major, minor, protocol, size) in [
        (0, 1, Protocol::V1, 64),
        (0, 2, Protocol::V1, 64),
        (0, 3, Protocol::V2, 128),
        (0, 255, Protocol::V2, 128),
        (1, 0, Protocol::V2, 128),
        (1, 2, Protocol::V2, 128),
    ] {
        let of_version = Protocol::of(Version { minor, major });
        assert_eq!(of_version, protocol, "{major}.{minor}");
        assert_eq!(of_version.entry_size(), size);
        let mut entry = AqEntry::zeroed(protocol);
        assert_eq!((entry.bytes().len(), entry.bytes_mut().len()), (size, size));
        for (index, byte) in entry.bytes_mut().iter_mut().enumerate() {
            *byte = index as u8;
        }
        assert_eq!(entry.blocks().collect::<Vec<_>>().concat(), entry.bytes());
    }
}

/// A complete entry of interface 0.3. Its checksum was computed independently of this code.
#[test]
fn entry_with_checksum() {
    let mut entry = AqEntry::new(Protocol::V2, &DeallocPd { pd: 0x0102 }.to_request(), 0x0345, true);
    assert_eq!(entry.bytes(), sparse::<128>(&[(0, &[0x45, 0x03, 15, 1, 0x79, 0xe5]), (12, &[2, 1])]));
    assert!(entry.is_intact());
    entry.bytes_mut()[127] = 1;
    assert!(!entry.is_intact());
    entry.update_checksum();
    assert!(entry.is_intact());
    entry.bytes_mut()[4] ^= 1;
    assert!(!entry.is_intact());
    assert!(AqEntry::zeroed(Protocol::V1).is_intact());
    assert!(!AqEntry::zeroed(Protocol::V2).is_intact());
}

#[test]
fn parts_of_structures() {
    let groups = AenqConfig { supported_groups: 0x0102_0304, enabled_groups: 0x1e };
    assert_eq!(groups.into_setting(), sparse(&[(0, &[4, 3, 2, 1, 0x1e])]));
    assert_eq!(AenqConfig::from_setting(&groups.into_setting()), groups);
    assert_eq!(FeatureId::QueueAttr2.mask(), 1 << 9);
    assert_eq!(AenqGroup::KeepAlive.mask(), 0x10);
    assert_eq!((QpEvents::DEFINED, Caps::DEFINED), (0x3ff, 0x000f_ff3f));
    assert_eq!((control::CHUNK_ENTRIES, control::CHUNK_NEXT_OFFSET, control::CHUNK_USED_SIZE), (510, 4080, 4092));
    assert_eq!(
        (admin::ACQ_PHASE_OFFSET, efa_hw::aenq::PHASE_OFFSET, efa_hw::eq::PHASE_OFFSET, io::CDESC_FLAGS_OFFSET),
        (3, 4, 0, 3)
    );
    let completion = io::Cdesc::default().with_req_id_ex([1, 2, 3, 4, 5, 6]);
    assert_eq!(completion.encode(), sparse(&[(6, &[1, 2, 3, 4, 5, 6])]));
    assert_eq!(format!("{:>12}|", Opcode::RegMr), "      REG_MR|");
    assert_eq!(Undefined(24).to_string(), "0x18 has no meaning in the interface");
}

proptest! {
    /// For any content, the parts of an entry of either format are accessible and lie within it.
    #[test]
    fn entries(bytes in proptest::collection::vec(any::<u8>(), 128)) {
        for (protocol, payload) in [(Protocol::V1, 4..64), (Protocol::V2, 12..72)] {
            let mut entry = AqEntry::zeroed(protocol);
            let size = entry.bytes().len();
            entry.bytes_mut().copy_from_slice(&bytes[..size]);
            let request = entry.request();
            prop_assert_eq!(&request.payload, &bytes[payload]);
            prop_assert_eq!(request.opcode, bytes[2]);
            prop_assert_eq!(request.control.into_raw(), bytes[3] & 0b110);
            entry.update_checksum();
            prop_assert!(entry.is_intact());
            let header = entry.header();
            let again = AqEntry::new(protocol, &request, header.command_id.id, header.flags.phase);
            prop_assert_eq!((again.header(), again.request()), (header, request));
        }
    }
}
