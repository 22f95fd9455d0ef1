// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Registers, and the entries of queues other than the admin queue.

use efa_hw::{
    admin::{Opcode, Status, mr},
    aenq, eq as eqe,
    features::FeatureId,
    io, regs,
    wire::Undefined,
};

use super::sparse;

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
                relaxed_ordering: false,
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
fn sends_and_receives() {
    assert_eq!(
        io::TxMetaDesc {
            req_id: 0x0102,
            ctrl1: io::TxCtrl1 {
                op_type: io::OpType::RdmaWrite.into(),
                has_imm: true,
                inline_msg: true,
                meta_extension: false,
                meta_desc: true,
            },
            ctrl2: io::TxCtrl2 {
                phase: true,
                first: true,
                last: true,
                comp_req: true,
            },
            dest_qp_num: 0x0304,
            length: 0x0506,
            immediate_data: 0x1112_1314,
            ah: 0x0708,
            ctrl3: io::TxCtrl3 {
                processing_hints: io::HINT_BURST_PPS_SENSITIVE,
            },
            qkey: 0x2122_2324,
            req_id_ex: [1, 2, 3, 4, 5, 6],
        }
        .encode(),
        sparse(&[
            (0, &[2, 1, 0b1011_0010, 0b1_1101, 4, 3, 6, 5]),
            (8, &[0x14, 0x13, 0x12, 0x11, 8, 7, 1]),
            (16, &[0x24, 0x23, 0x22, 0x21]),
            (26, &[1, 2, 3, 4, 5, 6]),
        ])
    );
    let extended = io::TxCtrl1 {
        meta_extension: true,
        ..Default::default()
    };
    assert_eq!(extended.into_raw(), 0x40);
    // A buffer, memory of the peer, and a receive descriptor.
    let (length, key, address) = (0x0102_0304, 0x0506_0708, 0x1112_1314_1516_1718);
    let buffer = [
        4, 3, 2, 1, 8, 7, 6, 5, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,
    ];
    let local = io::TxBufDesc {
        length,
        lkey: key,
        buf_addr: address,
    };
    let remote = io::RemoteMemAddr {
        length,
        rkey: key,
        buf_addr: address,
    };
    assert_eq!((local.encode(), remote.encode()), (buffer, buffer));
    assert_eq!(
        io::RxDesc {
            buf_addr: address,
            req_id: 0x0102,
            length: 0x0304,
            lkey_ctrl: io::RxLkeyCtrl {
                lkey: 0x0006_0708,
                first: true,
                last: false,
            },
        }
        .encode(),
        [
            0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 2, 1, 4, 3, 8, 7, 6, 0x40
        ]
    );
    let last = io::RxLkeyCtrl {
        last: true,
        ..Default::default()
    };
    assert_eq!(last.into_raw(), 1 << 31);
}

#[test]
fn completions() {
    let flags = io::CdescFlags {
        phase: true,
        q_type: io::QueueType::Receive.into(),
        has_imm: true,
        op_type: io::OpType::RdmaWrite.into(),
        unsolicited: true,
    };
    let completion = io::Cdesc {
        req_id: 0x0102,
        status: 0x03,
        flags,
        qp_num: 0x0405,
        length: 0x0607,
        ah: 0x0809,
        src_qp_num: 0x0a0b,
        imm: 0x1112_1314,
        extension: [0xff; 16],
    };
    let bytes = completion.encode();
    assert_eq!(bytes[..8], [2, 1, 3, 0b1010_1101, 5, 4, 7, 6]);
    assert_eq!(bytes[8..16], [9, 8, 0x0b, 0x0a, 0x14, 0x13, 0x12, 0x11]);
    assert_eq!(bytes[16..], [0xff; 16]);
    assert_eq!(io::CDESC_FLAGS_OFFSET, 3);
    let extended = completion.with_req_id_ex([1, 2, 3, 4, 5, 6]).encode();
    assert_eq!(extended[6..12], [1, 2, 3, 4, 5, 6]);
    let doorbell = io::CqDb {
        consumer_index: 0x0102,
        cmd_sn: 3,
        arm: true,
    };
    assert_eq!(doorbell.into_raw(), 0xe000_0102);
    let numbers = [io::QueueType::Send, io::QueueType::Receive].map(u8::from);
    assert_eq!(numbers, [1, 2]);
    let statuses = io::CompStatus::ALL.iter().map(|status| u8::from(*status));
    assert_eq!(
        statuses.collect::<Vec<_>>(),
        [(0..=15).collect::<Vec<_>>(), vec![18]].concat()
    );
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
