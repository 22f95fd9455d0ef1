// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Any bytes from the other side decode. Reserved bits and bytes do not survive a round trip.

use efa_hw::{
    admin::{self, AqEntry, Command, Protocol, ah, cq, eq, event_counter, mr, pd, qp, uar},
    aenq, features, host_info, io, regs, stats,
};
use proptest::prelude::*;

/// For each layout, a round trip preserves the fields and clears the reserved bytes.
macro_rules! layouts {
    ($($test:ident: $type:ty, reserved [$($reserved:expr),*];)*) => {
        proptest! {$(
            #[test]
            fn $test(bytes in proptest::collection::vec(any::<u8>(), <$type>::SIZE)) {
                let bytes: [u8; <$type>::SIZE] = bytes.try_into().unwrap();
                let value = <$type>::decode(&bytes);
                let encoded = value.encode();
                prop_assert_eq!(<$type>::decode(&encoded), value);
                for (offset, byte) in encoded.into_iter().enumerate() {
                    prop_assert_eq!(byte & !bytes[offset], 0, "byte {} gained a bit", offset);
                    if false $(|| ($reserved).contains(&offset))* {
                        prop_assert_eq!(byte, 0, "byte {} is reserved", offset);
                    }
                }
            }
        )*}

        /// After decoding all ones, exactly the reserved bytes are zero.
        #[test]
        fn reserved_bytes() {
            $(
                let encoded = <$type>::decode(&[0xff; <$type>::SIZE]).encode();
                for (offset, byte) in encoded.into_iter().enumerate() {
                    assert_eq!(
                        byte == 0,
                        false $(|| ($reserved).contains(&offset))*,
                        "byte {} of {}",
                        offset,
                        stringify!($type),
                    );
                }
            )*
        }
    };
}

layouts! {
    aq_header: admin::AqHeader, reserved [];
    aq_header_v2: admin::AqHeaderV2, reserved [7..12];
    acq_header: admin::AcqHeader, reserved [6..8];
    control_buffer: admin::CtrlBuffInfo, reserved [];
    create_qp_response: qp::CreateQpResponse, reserved [0..8, 14..16, 32..64];
    query_qp: qp::QueryQp, reserved [4..60];
    create_ah: ah::CreateAh, reserved [18..60];
    destroy_ah: ah::DestroyAh, reserved [4..60];
    reg_mr_response: mr::RegMrResponse, reserved [0..8, 20..64];
    alloc_mr: mr::AllocMr, reserved [2..4, 8..60];
    create_cq: cq::CreateCq, reserved [6..8, 24..60];
    create_cq_response: cq::CreateCqResponse, reserved [0..8, 17..64];
    create_eq: eq::CreateEq, reserved [13..60];
    alloc_pd: pd::AllocPd, reserved [0..60];
    dealloc_uar: uar::DeallocUar, reserved [2..60];
    create_event_counter: event_counter::CreateEventCounter, reserved [2..4, 12..60];
    create_event_counter_response: event_counter::CreateEventCounterResponse, reserved [0..8, 12..64];
    destroy_event_counter: event_counter::DestroyEventCounter, reserved [4..60];
    attach_event_counter: event_counter::AttachEventCounter, reserved [5..8, 14..60];
    modify_event_counter: event_counter::ModifyEventCounter, reserved [5..12, 20..60];
    detach_event_counter: event_counter::DetachEventCounter, reserved [5..8, 14..60];
    get_feature: features::GetFeature, reserved [12..13, 14..60];
    set_feature: features::SetFeature, reserved [12..13, 14..16];
    get_stats: stats::GetStats, reserved [16..60];
    device_attr: features::DeviceAttr, reserved [34..36, 50..56];
    queue_attr_1: features::QueueAttr1, reserved [];
    queue_attr_2: features::QueueAttr2, reserved [2..8, 10..12];
    aenq_entry: aenq::AenqEntry, reserved [5..8];
    eqe: efa_hw::eq::Eqe, reserved [2..8, 10..16];
    host_info: host_info::HostInfo, reserved [177..180];
    fast_mr_reg_req: io::FastMrRegReq, reserved [6..8];
    fast_mr_inv_req: io::FastMrInvReq, reserved [4..32];
    readless_response: regs::ReadlessResponse, reserved [];
}

proptest! {
    #[test]
    fn command_fields(
        handle: u32, state: u32, cur_state: u32, qkey: u32, sq_psn: u32, notify: bool, rnr_retry: u8,
        mask: u32,
    ) {
        let command = qp::ModifyQp {
            modify_mask: qp::ModifyQpMask::from_raw(mask),
            qp_handle: handle,
            qp_state: state,
            cur_qp_state: cur_state,
            qkey,
            sq_psn,
            sq_drained_async_notify: notify,
            rnr_retry,
        };
        prop_assert_eq!(qp::ModifyQp::decode(&command.encode()), command);
    }

    #[test]
    fn page_lists(kind in 0..3, pages: [u64; 4], length: u32) {
        let buffer = admin::CtrlBuffInfo { length, address: pages[0] };
        let list = match kind {
            0 => mr::PageList::Inline(pages),
            1 => mr::PageList::Direct(buffer),
            _ => mr::PageList::Indirect(buffer),
        };
        let mut command = mr::RegMr::default();
        command.set_page_list(list);
        let decoded = mr::RegMr::from_request(&command.to_request());
        prop_assert_eq!(decoded.page_list(), Some(list));
    }

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

    /// Only defined bits survive, in registers and flags of each width.
    #[test]
    fn words(word: u32) {
        prop_assert_eq!(regs::Caps::from_raw(word).into_raw(), word & 0x000f_ff3f);
        prop_assert_eq!(regs::DevCtl::from_raw(word).into_raw(), word & 0xf000_0003);
        prop_assert_eq!(regs::DevSts::from_raw(word).into_raw(), word & 0x3f);
        prop_assert_eq!(regs::AqCaps::from_raw(word).into_raw(), word);
        prop_assert_eq!(regs::EventRingCaps::from_raw(word).into_raw(), word);
        prop_assert_eq!(event_counter::QpEvents::from_raw(word).into_raw(), word & 0x3ff);
        prop_assert_eq!(regs::EqDb::from_raw(word).into_raw(), word & 0x8000_ffff);
        prop_assert_eq!(regs::Version::from_raw(word).into_raw(), word & 0xffff);
        prop_assert_eq!(regs::ControllerVersion::from_raw(word).into_raw(), word);
        let [half, _] = [word as u16, 0];
        prop_assert_eq!(host_info::Bdf::from_raw(half).into_raw(), half);
        prop_assert_eq!(admin::CommandId::from_raw(half).into_raw(), half & 0x0fff);
        let byte = word as u8;
        prop_assert_eq!(admin::AqFlags::from_raw(byte).into_raw(), byte & 0b111);
        prop_assert_eq!(cq::CqCaps1::from_raw(byte).into_raw(), byte & 0x60);
        prop_assert_eq!(cq::CqCaps2::from_raw(byte).into_raw(), byte & 0x7f);
        prop_assert_eq!(mr::RegMrFlags::from_raw(byte).into_raw(), byte & 0xbf);
    }

    /// A value that is too large for its field does not reach its neighbours.
    #[test]
    fn values_too_large(reset_timeout: u8, admin_cmd_timeout: u8) {
        let caps = regs::Caps { reset_timeout, admin_cmd_timeout, ..Default::default() };
        prop_assert_eq!(
            regs::Caps::from_raw(caps.into_raw()),
            regs::Caps {
                reset_timeout: reset_timeout & 0x1f,
                admin_cmd_timeout: admin_cmd_timeout & 0xf,
                ..Default::default()
            }
        );
    }
}
