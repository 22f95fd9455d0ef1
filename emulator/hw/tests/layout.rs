// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Encodings, byte by byte, as a device expects them.

use efa_hw::{
    admin::{
        AcqFlags, AcqHeader, AqEntry, AqFlags, AqHeader, AqHeaderV2, Command, CommandId,
        CtrlBuffInfo, NoData, Opcode, Protocol, Response, Status, ah, control, cq, eq,
        event_counter, mr, pd, qp, uar,
    },
    aenq, eq as eqe,
    features::{self, Feature, FeatureId},
    host_info, io, regs,
    stats::{self, Stats},
    wire::Undefined,
};

/// Returns `N` bytes that are zero except for the given parts at the given offsets.
fn sparse<const N: usize>(parts: &[(usize, &[u8])]) -> [u8; N] {
    let mut bytes = [0; N];
    for (offset, part) in parts {
        bytes[*offset..*offset + part.len()].copy_from_slice(part);
    }
    bytes
}

/// Returns the entry of a command in the format of interface 0.1, without id and phase. Checks that the
/// format of 0.3 agrees.
fn entry(command: &impl Command) -> [u8; 64] {
    let request = command.to_request();
    let entry = AqEntry::new(Protocol::V1, &request, 0, false);
    let newer = AqEntry::new(Protocol::V2, &request, 0, false);
    assert_eq!(newer.bytes()[..4], entry.bytes()[..4]);
    assert_eq!(newer.bytes()[6..12], [0; 6]);
    assert_eq!(newer.bytes()[12..72], entry.bytes()[4..]);
    assert_eq!(newer.bytes()[72..], [0; 56]);
    assert_eq!((entry.request(), newer.request()), (request, request));
    entry.bytes().try_into().unwrap()
}

/// Checks the entry of a command: bytes that are zero except for the given parts.
#[track_caller]
fn check_command(command: &impl Command, parts: &[(usize, &[u8])]) {
    assert_eq!(entry(command), sparse(parts));
}

/// As [`check_command`], for the entry of a response.
#[track_caller]
fn check_response(response: &impl Response, parts: &[(usize, &[u8])]) {
    assert_eq!(response.to_entry(), sparse(parts));
}

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

/// A subset of the countable events.
const QP_EVENTS: event_counter::QpEvents = event_counter::QpEvents {
    send_comp: true,
    send_comp_err: false,
    recv_comp: true,
    recv_comp_err: false,
    read_comp: true,
    read_comp_err: false,
    write_comp: true,
    write_comp_err: false,
    remote_read_comp: false,
    remote_write_comp: true,
};

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

#[test]
fn responses() {
    assert_eq!(NoData {}.to_entry(), [0; 64]);
    check_response(
        &qp::CreateQpResponse {
            qp_handle: 0x0102_0304,
            qp_num: 0x0506,
            send_sub_cq_idx: 0x0708,
            recv_sub_cq_idx: 0x090a,
            sq_db_offset: 0x1112_1314,
            rq_db_offset: 0x2122_2324,
            llq_descriptors_offset: 0x3132_3334,
        },
        &[
            (8, &[4, 3, 2, 1, 6, 5]),
            (16, &[8, 7, 10, 9]),
            (20, &[0x14, 0x13, 0x12, 0x11, 0x24, 0x23, 0x22, 0x21]),
            (28, &[0x34, 0x33, 0x32, 0x31]),
        ],
    );
    check_response(
        &qp::QueryQpResponse {
            qp_state: 6,
            qkey: 0x1112_1314,
            sq_psn: 0x2122_2324,
            sq_draining: true,
            rnr_retry: 7,
        },
        &[
            (8, &[6]),
            (12, &[0x14, 0x13, 0x12, 0x11, 0x24, 0x23, 0x22, 0x21, 1, 7]),
        ],
    );
    check_response(&ah::CreateAhResponse { ah: 0x0102 }, &[(8, &[2, 1])]);
    check_response(
        &mr::RegMrResponse {
            l_key: 0x0102_0304,
            r_key: 0x0506_0708,
            validity: mr::InterconnectValidity {
                recv_ic_id: true,
                rdma_read_ic_id: false,
                rdma_recv_ic_id: true,
            },
            recv_ic_id: 9,
            rdma_read_ic_id: 10,
            rdma_recv_ic_id: 11,
        },
        &[(8, &[4, 3, 2, 1, 8, 7, 6, 5, 0b101, 9, 10, 11])],
    );
    check_response(
        &cq::CreateCqResponse {
            cq_idx: 0x0102,
            sub_cq_actual_depth: 0x0304,
            db_offset: 0x0506_0708,
            flags: cq::CreateCqResponseFlags { db_valid: true },
        },
        &[(8, &[2, 1, 4, 3, 8, 7, 6, 5, 1])],
    );
    check_response(&pd::AllocPdResponse { pd: 0x0102 }, &[(8, &[2, 1])]);
    check_response(&uar::AllocUarResponse { uar: 0x0102 }, &[(8, &[2, 1])]);
    check_response(&eq::CreateEqResponse { eqn: 0x0102 }, &[(8, &[2, 1])]);
    check_response(
        &mr::AllocMrResponse {
            l_key: 0x0102_0304,
            r_key: 0x0506_0708,
        },
        &[(8, &[4, 3, 2, 1, 8, 7, 6, 5])],
    );
}

#[test]
fn headers() {
    let request = pd::AllocPd {}.to_request();
    for protocol in [Protocol::V1, Protocol::V2] {
        let entry = AqEntry::new(protocol, &request, 0x0abc, true);
        assert_eq!(entry.bytes()[..4], [0xbc, 0x0a, 14, 1]);
        assert_eq!(
            entry.header(),
            AqHeader {
                command_id: CommandId { id: 0x0abc },
                opcode: Opcode::AllocPd.into(),
                flags: AqFlags {
                    phase: true,
                    ..Default::default()
                },
            }
        );

        // An id that is too large must not reach the reserved bits.
        let entry = AqEntry::new(protocol, &request, 0xffff, false);
        assert_eq!(entry.bytes()[..4], [0xff, 0x0f, 14, 0]);

        // The flags that belong to the command are kept.
        let mut command = mr::RegMr::default();
        command.set_page_list(mr::PageList::Indirect(CtrlBuffInfo::default()));
        let entry = AqEntry::new(protocol, &command.to_request(), 1, true);
        assert_eq!(entry.bytes()[3], 0b111);
        assert_eq!(mr::RegMr::from_request(&entry.request()), command);
    }
    let header = AqHeaderV2 {
        common: AqHeader::default(),
        checksum: 0x0102,
        payload_ver: 3,
    };
    assert_eq!(header.encode(), [0, 0, 0, 0, 2, 1, 3, 0, 0, 0, 0, 0]);

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
        let of_version = Protocol::of(regs::Version { minor, major });
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
    let mut entry = AqEntry::new(
        Protocol::V2,
        &pd::DeallocPd { pd: 0x0102 }.to_request(),
        0x0345,
        true,
    );
    assert_eq!(
        entry.bytes(),
        sparse::<128>(&[(0, &[0x45, 0x03, 15, 1, 0x79, 0xe5]), (12, &[2, 1])])
    );
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
fn feature_attributes() {
    let attributes = features::DeviceAttr {
        supported_features: 0x0102_0304_0506_0708,
        page_size_cap: 0x1112_1314_1516_1718,
        fw_version: 0x2122_2324,
        admin_api_version: 0x3132_3334,
        device_version: 0x4142_4344,
        db_bar: 0x0506,
        phys_addr_width: 7,
        virt_addr_width: 8,
        device_caps: features::DeviceCaps {
            rdma_read: true,
            rnr_retry: false,
            data_polling_128: true,
            rdma_write: false,
            unsolicited_write_recv: true,
            event_counters: true,
            sq_64_bit_req_id: true,
        },
        max_rdma_size: 0x5152_5354,
        guid: 0x6162_6364_6566_6768,
        max_link_speed_gbps: 0x7172,
    };
    let response = attributes.into_response();
    check_response(
        &response,
        &[
            (8, &[8, 7, 6, 5, 4, 3, 2, 1]),
            (16, &[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]),
            (24, &[0x24, 0x23, 0x22, 0x21, 0x34, 0x33, 0x32, 0x31]),
            (32, &[0x44, 0x43, 0x42, 0x41]),
            (36, &[6, 5, 7, 8, 0b11_0101, 0b100, 0, 0]),
            (44, &[0x54, 0x53, 0x52, 0x51]),
            (48, &[0x68, 0x67, 0x66, 0x65, 0x64, 0x63, 0x62, 0x61]),
            (56, &[0x72, 0x71]),
        ],
    );
    assert_eq!(features::DeviceAttr::from_response(&response), attributes);

    assert_eq!(
        features::QueueAttr1 {
            max_qp: 0x0102_0304,
            max_sq_depth: 2,
            inline_buf_size: 3,
            max_rq_depth: 4,
            max_cq: 5,
            max_cq_depth: 6,
            sub_cqs_per_cq: 7,
            min_sq_depth: 8,
            max_wr_send_sges: 9,
            max_wr_recv_sges: 10,
            max_mr: 11,
            max_mr_pages: 12,
            max_pd: 13,
            max_ah: 14,
            max_llq_size: 15,
            max_wr_rdma_sges: 16,
            max_tx_batch: 0x1112,
        }
        .encode(),
        [
            4, 3, 2, 1, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 7, 0, 8, 0, 9,
            0, 10, 0, 11, 0, 0, 0, 12, 0, 0, 0, 13, 0, 0, 0, 14, 0, 0, 0, 15, 0, 0, 0, 16, 0, 0x12,
            0x11
        ]
    );
    check_response(
        &features::QueueAttr2 {
            inline_buf_size_ex: 0x0102,
            supported_event_counter_qp_events: QP_EVENTS,
            max_event_counters: 0x1112_1314,
            event_counter_max_val: 0x2122_2324_2526_2728,
        }
        .into_response(),
        &[
            (8, &[2, 1]),
            (16, &[0x55, 2, 0, 0, 0x14, 0x13, 0x12, 0x11]),
            (24, &[0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21]),
        ],
    );
    let attributes = features::NetworkAttr {
        addr: *b"0123456789abcdef",
        mtu: 0x0102_0304,
    };
    assert_eq!(attributes.encode(), *b"0123456789abcdef\x04\x03\x02\x01");
    let hints = features::HwHints {
        mmio_read_timeout: 0x0102,
        driver_watchdog_timeout: 0x0304,
        admin_completion_timeout: 0x0506,
        poll_interval: 0x0708,
    };
    assert_eq!(hints.encode(), [2, 1, 4, 3, 6, 5, 8, 7]);
    let attributes = features::EventQueueAttr {
        max_eq: 0x0102_0304,
        max_eq_depth: 0x0506_0708,
        event_bitmask: features::EqEvents { completion: true },
    };
    assert_eq!(attributes.encode(), [4, 3, 2, 1, 8, 7, 6, 5, 1, 0, 0, 0]);
    let groups = features::AenqConfig {
        supported_groups: 0x0102_0304,
        enabled_groups: 0x1e,
    };
    assert_eq!(groups.into_setting(), sparse(&[(0, &[4, 3, 2, 1, 0x1e])]));
    assert_eq!(
        features::AenqConfig::from_setting(&groups.into_setting()),
        groups
    );
    assert_eq!(FeatureId::QueueAttr2.mask(), 1 << 9);
}

#[test]
fn statistics() {
    let basic = stats::BasicStats {
        tx_bytes: 1,
        tx_pkts: 2,
        rx_bytes: 3,
        rx_pkts: 4,
        rx_drops: 5,
        qkey_viol: 0x0102_0304_0506_0708,
    };
    let response = basic.into_response();
    check_response(
        &response,
        &[
            (8, &[1]),
            (16, &[2]),
            (24, &[3]),
            (32, &[4]),
            (40, &[5]),
            (48, &[8, 7, 6, 5, 4, 3, 2, 1]),
        ],
    );
    assert_eq!(stats::BasicStats::from_response(&response), basic);
    let four = sparse(&[(0, &[1]), (8, &[2]), (16, &[3]), (24, &[4])]);
    let messages = stats::MessagesStats {
        send_bytes: 1,
        send_wrs: 2,
        recv_bytes: 3,
        recv_wrs: 4,
    };
    assert_eq!(messages.encode(), four);
    let reads = stats::RdmaReadStats {
        read_wrs: 1,
        read_bytes: 2,
        read_wr_err: 3,
        read_resp_bytes: 4,
    };
    assert_eq!(reads.encode(), four);
    let writes = stats::RdmaWriteStats {
        write_wrs: 1,
        write_bytes: 2,
        write_wr_err: 3,
        write_recv_bytes: 4,
    };
    assert_eq!(writes.encode(), four);
    let network = stats::NetworkStats {
        retrans_bytes: 1,
        retrans_pkts: 2,
        retrans_timeout_events: 3,
        unresponsive_remote_events: 4,
        impaired_remote_conn_events: 5,
    };
    let five = sparse(&[(0, &[1]), (8, &[2]), (16, &[3]), (24, &[4]), (32, &[5])]);
    assert_eq!(network.encode(), five);
}

#[test]
fn events() {
    assert_eq!(
        aenq::AenqEntry {
            group: aenq::AenqGroup::KeepAlive.into(),
            syndrome: 0x0102,
            flags: aenq::AenqFlags { phase: true },
            timestamp: 0x1112_1314_1516_1718,
            data: [0xff; 48],
        }
        .encode(),
        sparse(&[
            (0, &[4, 0, 2, 1, 1]),
            (8, &[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]),
            (16, &[0xff; 48]),
        ])
    );
    assert_eq!(aenq::AenqGroup::KeepAlive.mask(), 0x10);
    let event = eqe::Eqe {
        common: eqe::EqeCommon {
            phase: true,
            event_type: 0xff,
        },
        cqn: 0x0102,
    };
    assert_eq!(event.encode(), sparse(&[(0, &[0xff, 0x01]), (8, &[2, 1])]));
}

#[test]
fn host_info() {
    let mut info = host_info::HostInfo {
        os_type: host_info::OsType::Linux.into(),
        kernel_version: 0x0007_020c,
        driver_version: host_info::DriverVersion {
            module_type: b'r',
            sub_minor: 3,
            minor: 2,
            major: 1,
        },
        bdf: host_info::Bdf {
            function: 7,
            device: 0x1f,
            bus: 0xab,
        },
        spec_version: host_info::SPEC_VERSION,
        flags: host_info::HostInfoFlags {
            intree: true,
            gdr: true,
        },
        ..Default::default()
    };
    info.os_dist[..3].copy_from_slice(b"7.3");
    info.kernel_version_text[..2].copy_from_slice(b"#1");
    assert_eq!(
        info.encode(),
        sparse(&[
            (0, b"7.3"),
            (132, b"#1"),
            (164, &[0x0c, 0x02, 0x07, 0x00, b'r', 3, 2, 1]),
            (172, &[0xff, 0xab, 0, 2, 0b11]),
        ])
    );
}

#[test]
fn registers() {
    use regs::Register;

    assert_eq!(Register::ALL.len(), 21);
    assert_eq!(Register::try_from(0x58), Ok(Register::DevSts));
    assert_eq!(Register::try_from(0x0c), Err(Undefined(0x0c)));
    assert_eq!(Register::DevSts.name(), "DEV_STS");

    let caps = regs::Caps {
        contiguous_queue_required: true,
        reset_timeout: 10,
        dma_addr_width: 48,
        admin_cmd_timeout: 3,
    };
    assert_eq!(caps.into_raw(), 0x0003_3015);
    assert_eq!(regs::Caps::from_raw(0x0003_3015), caps);
    assert_eq!(regs::Caps::DEFINED, 0x000f_ff3f);

    let reset = regs::DevCtl {
        dev_reset: true,
        aq_restart: false,
        reset_reason: regs::ResetReason::Shutdown.into(),
    };
    assert_eq!(reset.into_raw(), 0x6000_0001);

    let caps = regs::AqCaps {
        depth: 32,
        entry_size: 64,
    };
    assert_eq!(caps.into_raw(), 0x0040_0020);
    let caps = regs::EventRingCaps {
        depth: 16,
        entry_size: 64,
        msix_vector: 3,
    };
    assert_eq!(caps.into_raw(), 0x0340_0010);
    let read = regs::MmioRegRead {
        req_id: 0x0102,
        reg_off: 0x58,
    };
    assert_eq!(read.into_raw(), 0x0058_0102);
    let doorbell = regs::EqDb {
        eqn: 0x0102,
        arm: true,
    };
    assert_eq!(doorbell.into_raw(), 0x8000_0102);
    assert_eq!(regs::IntrMask { masked: true }.into_raw(), 1);
    assert_eq!(regs::Version { minor: 2, major: 1 }.into_raw(), 0x0102);
    let version = regs::ControllerVersion {
        subminor: 4,
        minor: 3,
        major: 2,
        implementation: 1,
    };
    assert_eq!(version.into_raw(), 0x0102_0304);
    let status = regs::DevSts {
        ready: true,
        reset_in_progress: true,
        ..Default::default()
    };
    assert_eq!(status.into_raw(), 0b1001);
    let status = regs::DevSts {
        fatal_error: true,
        ..Default::default()
    };
    assert_eq!(status.into_raw(), 0x20);
    let response = regs::ReadlessResponse {
        req_id: 0x0102,
        reg_off: 0x58,
        reg_val: 0x0304_0506,
    };
    assert_eq!(response.encode(), [2, 1, 0x58, 0, 6, 5, 4, 3]);
}

#[test]
fn work_requests() {
    assert_eq!(
        io::FastMrRegReq {
            lkey: 0x0102_0304,
            permissions: mr::RegMrPermissions {
                local_write_enable: true,
                remote_write_enable: false,
                remote_read_enable: true,
            },
            flags: io::FastMrRegFlags {
                phys_page_size_shift: 12,
                pbl_mode: io::PblMode::Direct.into(),
            },
            iova: 0x1112_1314_1516_1718,
            mr_length: 0x2122_2324_2526_2728,
            pbl: 0x3132_3334_3536_3738,
        }
        .encode(),
        sparse(&[
            (0, &[4, 3, 2, 1, 0b101, 0b010_1100]),
            (8, &[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]),
            (16, &[0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21]),
            (24, &[0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31]),
        ])
    );
    assert_eq!(
        io::FastMrInvReq { lkey: 0x0102_0304 }.encode(),
        sparse(&[(0, &[4, 3, 2, 1])])
    );
    let key = io::Key {
        region: 0x8_0102,
        generation: 0xf,
    };
    assert_eq!(key.into_raw(), 0x00f8_0102);
    assert_eq!(io::Key::from_raw(0xfff8_0102), key);
}

#[test]
fn codes() {
    assert_eq!(Opcode::ALL.len(), 26);
    assert_eq!(Opcode::try_from(0), Err(Undefined(0)));
    assert_eq!(Opcode::try_from(24), Err(Undefined(24)));
    assert_eq!(Opcode::try_from(30), Err(Undefined(30)));
    assert_eq!(Status::try_from(8), Err(Undefined(8)));
    assert_eq!(FeatureId::try_from(8), Err(Undefined(8)));
    for (number, &opcode) in (1..=21).chain(25..=29).zip(Opcode::ALL) {
        assert_eq!(Opcode::try_from(number), Ok(opcode));
        assert_eq!(u8::from(opcode), number);
    }
    let names = ["SEND", "RDMA_READ", "RDMA_WRITE", "FAST_REG", "FAST_INV"];
    assert_eq!(io::OpType::ALL.len(), names.len());
    for (number, name) in (0..).zip(names) {
        assert_eq!(io::OpType::try_from(number).unwrap().to_string(), name);
    }
    let modes = [io::PblMode::Inline, io::PblMode::Direct].map(u8::from);
    assert_eq!(modes, [0, 1]);
    assert_eq!(format!("{:>12}|", Opcode::RegMr), "      REG_MR|");
    assert_eq!(
        Undefined(24).to_string(),
        "0x18 has no meaning in the interface"
    );
}
