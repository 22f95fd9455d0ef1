// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands.

use efa_hw::{
    admin::{AqFlags, CtrlBuffInfo, ah, control, cq, eq, event_counter, mr, pd, qp, uar},
    features, stats,
};

use super::{QP_EVENTS, check_command, check_response, entry, sparse};

#[test]
fn commands() {
    check_command(
        &qp::CreateQp {
            pd: 0x0102,
            qp_type: 2,
            flags: qp::CreateQpFlags {
                sq_virt: false,
                rq_virt: true,
                unsolicited_write_recv: false,
                sq_64_bit_req_id: true,
            },
            sq_base_addr: 0x1112_1314_1516_1718,
            rq_base_addr: 0x2122_2324_2526_2728,
            send_cq_idx: 0x3132_3334,
            recv_cq_idx: 0x3536_3738,
            sq_l_key: 0x4142_4344,
            rq_l_key: 0x4546_4748,
            send_queue_ring_size: 0x5152_5354,
            send_queue_depth: 0x5556_5758,
            recv_queue_ring_size: 0x6162_6364,
            recv_queue_depth: 0x6566_6768,
            uar: 0x7172,
            sl: 0x73,
        },
        &[
            (2, &[1]),
            (4, &[0x02, 0x01, 2, 0b1010]),
            (8, &[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]),
            (16, &[0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21]),
            (24, &[0x34, 0x33, 0x32, 0x31, 0x38, 0x37, 0x36, 0x35]),
            (32, &[0x44, 0x43, 0x42, 0x41, 0x48, 0x47, 0x46, 0x45]),
            (40, &[0x54, 0x53, 0x52, 0x51, 0x58, 0x57, 0x56, 0x55]),
            (48, &[0x64, 0x63, 0x62, 0x61, 0x68, 0x67, 0x66, 0x65]),
            (56, &[0x72, 0x71, 0x73]),
        ],
    );
    check_command(
        &qp::ModifyQp {
            modify_mask: qp::ModifyQpMask {
                qp_state: true,
                cur_qp_state: false,
                qkey: true,
                sq_psn: false,
                sq_drained_async_notify: true,
                rnr_retry: true,
            },
            qp_handle: 0x0102_0304,
            qp_state: 3,
            cur_qp_state: 2,
            qkey: 0x1112_1314,
            sq_psn: 0x2122_2324,
            sq_drained_async_notify: true,
            rnr_retry: 7,
        },
        &[
            (2, &[2]),
            (4, &[0b11_0101]),
            (8, &[4, 3, 2, 1, 3, 0, 0, 0, 2]),
            (20, &[0x14, 0x13, 0x12, 0x11, 0x24, 0x23, 0x22, 0x21, 1, 7]),
        ],
    );
    let qp_handle = 0x0102_0304;
    check_command(&qp::QueryQp { qp_handle }, &[(2, &[3, 0, 4, 3, 2, 1])]);
    check_command(&qp::DestroyQp { qp_handle }, &[(2, &[4, 0, 4, 3, 2, 1])]);
    check_command(
        &ah::CreateAh {
            dest_addr: *b"0123456789abcdef",
            pd: 0x0102,
        },
        &[(2, &[5, 0]), (4, b"0123456789abcdef"), (20, &[2, 1])],
    );
    check_command(
        &ah::DestroyAh {
            ah: 0x0102,
            pd: 0x0304,
        },
        &[(2, &[6, 0, 2, 1, 4, 3])],
    );
    let l_key = 0x0102_0304;
    check_command(&mr::DeregMr { l_key }, &[(2, &[8, 0, 4, 3, 2, 1])]);
    check_command(
        &cq::CreateCq {
            caps_1: cq::CqCaps1 {
                interrupt_mode_enabled: true,
                virt: false,
            },
            caps_2: cq::CqCaps2 {
                cq_entry_size_words: 8,
                set_src_addr: true,
                sq_comp_64_bit_req_id: true,
            },
            sub_cq_depth: 0x0102,
            eqn: 0x0304,
            base_address: 0x1112_1314_1516_1718,
            l_key: 0x2122_2324,
            num_sub_cqs: 0x3132,
            uar: 0x3334,
        },
        &[
            (2, &[9, 0, 0x20, 0x68, 2, 1, 4, 3]),
            (12, &[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]),
            (20, &[0x24, 0x23, 0x22, 0x21, 0x32, 0x31, 0x34, 0x33]),
        ],
    );
    check_command(&cq::DestroyCq { cq_idx: 0x0102 }, &[(2, &[10, 0, 2, 1])]);
    check_command(
        &features::GetFeature {
            feature_id: 9,
            ..Default::default()
        },
        &[(2, &[11]), (17, &[9])],
    );
    check_command(
        &features::SetFeature {
            control: AqFlags {
                ctrl_data: true,
                ..Default::default()
            },
            control_buffer: CtrlBuffInfo {
                length: 180,
                address: 0x0102_0304_0506_0708,
            },
            feature_id: 6,
            data: [0xff; 44],
        },
        &[
            (2, &[12, 2, 180, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1]),
            (17, &[6]),
            (20, &[0xff; 44]),
        ],
    );
    check_command(
        &stats::GetStats {
            stats_type: 4,
            scope: 1,
            scope_modifier: 0x0102,
            ..Default::default()
        },
        &[(2, &[13]), (16, &[4, 1, 2, 1])],
    );
    check_command(&pd::AllocPd {}, &[(2, &[14])]);
    check_command(&pd::DeallocPd { pd: 0x0102 }, &[(2, &[15, 0, 2, 1])]);
    check_command(&uar::AllocUar {}, &[(2, &[16])]);
    check_command(&uar::DeallocUar { uar: 0x0102 }, &[(2, &[17, 0, 2, 1])]);
    check_command(
        &eq::CreateEq {
            depth: 0x0102,
            msix_vector: 3,
            caps: eq::CreateEqCaps {
                entry_size_words: 4,
            },
            base_address: 0x1112_1314_1516_1718,
            events: features::EqEvents { completion: true },
        },
        &[
            (2, &[18, 0, 2, 1, 3, 4]),
            (8, &[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 1]),
        ],
    );
    check_command(&eq::DestroyEq { eqn: 0x0102 }, &[(2, &[19, 0, 2, 1])]);
    check_command(
        &mr::AllocMr {
            pd: 0x0102,
            max_pages: 0x0304_0506,
        },
        &[(2, &[20, 0, 2, 1, 0, 0, 6, 5, 4, 3])],
    );
}

#[test]
fn event_counters() {
    check_command(
        &event_counter::CreateEventCounter {
            uar: 0x0102,
            paddr: 0x1112_1314_1516_1718,
        },
        &[
            (2, &[25, 0, 2, 1]),
            (8, &[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]),
        ],
    );
    let cntr_handle = 0x0102_0304;
    check_response(
        &event_counter::CreateEventCounterResponse { cntr_handle },
        &[(8, &[4, 3, 2, 1])],
    );
    check_command(
        &event_counter::DestroyEventCounter { cntr_handle },
        &[(2, &[26, 0, 4, 3, 2, 1])],
    );
    check_command(
        &event_counter::ModifyEventCounter {
            cntr_handle,
            operation: event_counter::ModifyOp::Add.into(),
            value: 0x1112_1314_1516_1718,
        },
        &[
            (2, &[28, 0, 4, 3, 2, 1, 1]),
            (16, &[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]),
        ],
    );
    let attach = event_counter::AttachEventCounter {
        cntr_handle,
        attach_type: 5,
        qp_handle: 0x1112_1314,
        events: QP_EVENTS,
    };
    let detach = event_counter::DetachEventCounter {
        cntr_handle,
        attach_type: attach.attach_type,
        qp_handle: attach.qp_handle,
        events: attach.events,
    };
    for (opcode, bytes) in [(27, entry(&attach)), (29, entry(&detach))] {
        assert_eq!(
            bytes,
            sparse(&[
                (2, &[opcode, 0, 4, 3, 2, 1, 5]),
                (12, &[0x14, 0x13, 0x12, 0x11, 0x55, 2]),
            ])
        );
    }
    assert_eq!(event_counter::QpEvents::DEFINED, 0x3ff);
    for (index, &operation) in (0..).zip(event_counter::ModifyOp::ALL) {
        assert_eq!(u8::from(operation), index);
    }
    assert_eq!(u8::from(event_counter::AttachType::QpEvents), 0);
}

#[test]
fn memory_region_page_lists() {
    let mut command = mr::RegMr {
        pd: 0x0102,
        mr_length: 0x1112_1314_1516_1718,
        flags: mr::RegMrFlags {
            phys_page_size_shift: 21,
            mem_addr_phy_mode_en: true,
        },
        permissions: mr::RegMrPermissions {
            local_write_enable: true,
            remote_write_enable: false,
            remote_read_enable: true,
            relaxed_ordering: false,
        },
        page_num: 0x2122_2324,
        iova: 0x3132_3334_3536_3738,
        ..Default::default()
    };
    let common: &[(usize, &[u8])] = &[
        (4, &[2, 1]),
        (40, &[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]),
        (48, &[0x95, 0b101]),
        (52, &[0x24, 0x23, 0x22, 0x21]),
        (56, &[0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31]),
    ];

    let pages = mr::PageList::Inline([0x0102_0304_0506_0708, 2, 3, 4]);
    command.set_page_list(pages);
    let mut expected = common.to_vec();
    let inline: &[(usize, &[u8])] = &[
        (2, &[7, 0]),
        (8, &[8, 7, 6, 5, 4, 3, 2, 1, 2]),
        (24, &[3]),
        (32, &[4]),
    ];
    expected.extend(inline);
    assert_eq!(entry(&command), sparse(&expected));
    assert_eq!(command.page_list(), Some(pages));

    let buffer = CtrlBuffInfo {
        length: 0x0102_0304,
        address: 0x0506_0708_090a_0b0c,
    };
    for (pages, flags) in [
        (mr::PageList::Direct(buffer), 0b010),
        (mr::PageList::Indirect(buffer), 0b110),
    ] {
        command.set_page_list(pages);
        let mut expected = common.to_vec();
        let header = [7, flags];
        expected.push((2, &header));
        expected.push((8, &[4, 3, 2, 1, 12, 11, 10, 9, 8, 7, 6, 5]));
        assert_eq!(entry(&command), sparse(&expected));
        assert_eq!(command.page_list(), Some(pages));
    }

    command.control.ctrl_data = false;
    assert_eq!(command.page_list(), None);
}

#[test]
fn chunk_of_an_indirect_control_buffer() {
    assert_eq!(control::CHUNK_ENTRIES, 510);
    assert_eq!(control::CHUNK_NEXT_OFFSET, 4080);
    assert_eq!(control::CHUNK_USED_SIZE, 4092);
    let buffer = CtrlBuffInfo {
        length: 0x0102_0304,
        address: 0x0506_0708_090a_0b0c,
    };
    assert_eq!(buffer.encode(), [4, 3, 2, 1, 12, 11, 10, 9, 8, 7, 6, 5]);
}
