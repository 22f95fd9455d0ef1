// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Features, and the description of the host.

use efa_hw::{
    features::{self, Feature, FeatureId},
    host_info,
};

use super::{QP_EVENTS, check_response, sparse};

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
            relaxed_ordering: false,
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
