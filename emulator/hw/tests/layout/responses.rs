// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Responses, and what entries of the admin queue have in common.

use efa_hw::{
    admin::{
        AcqFlags, AcqHeader, AqEntry, AqFlags, AqHeader, AqHeaderV2, Command, CommandId,
        CtrlBuffInfo, NoData, Opcode, Protocol, Response, Status, ah, cq, eq, mr, pd, qp, uar,
    },
    regs,
    stats::{self, Stats},
};

use super::{check_response, sparse};

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
