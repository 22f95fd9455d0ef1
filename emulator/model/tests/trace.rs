// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The trace, with one line for each operation and event.

use efa_hw::{
    admin::{
        AqRequest, Command, CtrlBuffInfo,
        ah::CreateAh,
        event_counter::{DetachEventCounter, QpEvents},
        mr::{PageList, RegMrPermissions},
        pd::{AllocPd, DeallocPd},
        qp::{ModifyQpMask, QpState, QueryQp},
        uar::AllocUar,
    },
    aenq::AenqGroup,
    features::{
        AenqConfig, DeviceAttr, EventQueueAttr, HwHints, NetworkAttr, QueueAttr1, QueueAttr2,
        SetFeature,
    },
    regs::{Register, ResetReason},
    stats::GetStats,
};
use efa_model::{Death, Profile};
use efa_testing::{
    commands::{create_cq, create_eq, create_qp, reg_mr, to_state},
    mock::Driver,
};

/// Executes a command and returns the lines of the trace.
fn traced(driver: &mut Driver, command: &impl Command) -> Vec<String> {
    driver.world.trace.clear();
    driver.submit(command);
    driver.completion();
    std::mem::take(&mut driver.world.trace)
}

#[test]
fn commands() {
    let mut driver = Driver::new(Profile::Efa3);
    let overrides = r#"{"relaxed_ordering": true}"#;
    driver.device.set(serde_json::from_str(overrides).unwrap());
    let mut id = 0;
    let mut check =
        |driver: &mut Driver, command: &dyn Fn(&mut Driver) -> Vec<String>, line: &str| {
            assert_eq!(command(driver), [format!("aq {id} {line} [1 in flight]")]);
            id += 1;
        };
    macro_rules! check {
        ($command:expr, $line:expr) => {
            check(&mut driver, &|driver| traced(driver, &$command), $line)
        };
    }

    check!(AllocPd {}, "ALLOC_PD() = SUCCESS pd=1");
    check!(AllocUar {}, "ALLOC_UAR() = SUCCESS uar=1");
    check!(
        create_eq(0x1000),
        "CREATE_EQ(depth=64, msix_vector=1, entry_size_words=4, base_address=0x1000, events=completion) = SUCCESS eqn=1"
    );
    let mut cq = create_cq(1, 0x2000);
    (cq.caps_1.interrupt_mode_enabled, cq.eqn) = (true, 1);
    check!(
        cq,
        "CREATE_CQ(caps_1=interrupt_mode_enabled, cq_entry_size_words=8, set_src_addr, sub_cq_depth=64, eqn=1, \
         base_address=0x2000, num_sub_cqs=1, uar=1) = \
         SUCCESS cq_idx=1, sub_cq_actual_depth=64, db_offset=0x1000, flags=db_valid"
    );
    let mut qp = create_qp(1, 1, 1, 0x3000);
    qp.flags.unsolicited_write_recv = true;
    check!(
        qp,
        "CREATE_QP(pd=1, qp_type=SRD, flags=unsolicited_write_recv, rq_base_addr=0x3000, send_cq_idx=1, recv_cq_idx=1, \
         send_queue_ring_size=4096, send_queue_depth=64, recv_queue_ring_size=1024, recv_queue_depth=64, uar=1) = \
         SUCCESS qp_handle=1, qp_num=1, send_sub_cq_idx=0, recv_sub_cq_idx=0, sq_db_offset=0x0, rq_db_offset=0x8, \
         llq_descriptors_offset=0x0"
    );
    let mut modify = to_state(1, QpState::Init);
    modify.modify_mask.cur_qp_state = true;
    modify.qkey = 0x1234;
    check!(
        modify,
        "MODIFY_QP(modify_mask=qp_state+cur_qp_state, qp_handle=1, qp_state=INIT, cur_qp_state=RESET, qkey=0x1234) = \
         SUCCESS"
    );
    modify.modify_mask = ModifyQpMask::from_raw(0b11_1001);
    modify.qp_state = 77;
    modify.sq_drained_async_notify = true;
    check!(
        modify,
        "MODIFY_QP(modify_mask=qp_state+sq_psn+sq_drained_async_notify+rnr_retry, qp_handle=1, qp_state=77, \
         cur_qp_state=RESET, qkey=0x1234, sq_drained_async_notify) = ILLEGAL_PARAMETER"
    );
    check!(
        QueryQp { qp_handle: 1 },
        "QUERY_QP(qp_handle=1) = SUCCESS qp_state=INIT, qkey=0x0, sq_psn=0x0, rnr_retry=7"
    );
    let mut dest_addr = [0; 16];
    (dest_addr[0], dest_addr[1], dest_addr[15]) = (0xfe, 0x80, 7);
    check!(
        CreateAh { pd: 1, dest_addr },
        "CREATE_AH(dest_addr=fe80::7, pd=1) = SUCCESS ah=1"
    );
    let mut region = reg_mr(1, 0x7000, 0x1000);
    region.permissions = RegMrPermissions::from_raw(RegMrPermissions::DEFINED);
    let all = "local_write_enable+remote_write_enable+remote_read_enable+relaxed_ordering";
    let start = "REG_MR(pd=1, mr_length=4096, phys_page_size_shift=12, ";
    let end = format!("permissions={all}, iova=0x7000, ");
    region.set_page_list(PageList::Inline([0x4000, 0, 0, 0]));
    let made = "l_key=0x1, r_key=0x80001, validity=recv_ic_id+rdma_read_ic_id+rdma_recv_ic_id, recv_ic_id=1, rdma_read_ic_id=2, \
                rdma_recv_ic_id=3";
    check!(
        region,
        &format!("{start}{end}first=0x4000) = SUCCESS {made}")
    );
    let list = CtrlBuffInfo {
        length: 20,
        address: 0x5000,
    };
    region.set_page_list(PageList::Direct(list));
    let failed = "length=20, address=0x5000) = MALFORMED_REQUEST";
    check!(region, &format!("{start}{end}ctrl_data, {failed}"));
    region.set_page_list(PageList::Indirect(list));
    region.flags.mem_addr_phy_mode_en = true;
    check!(
        region,
        &format!("{start}mem_addr_phy_mode_en, {end}ctrl_data, ctrl_data_indirect, {failed}")
    );
    check!(
        GetStats {
            stats_type: 4,
            ..Default::default()
        },
        "GET_STATS(stats_type=NETWORK, scope=ALL) = SUCCESS"
    );
    check!(
        GetStats {
            stats_type: 9,
            scope: 1,
            scope_modifier: 3,
            ..Default::default()
        },
        "GET_STATS(stats_type=9, scope=QUEUE, scope_modifier=3) = UNSUPPORTED_OPCODE"
    );
    let groups = AenqConfig {
        supported_groups: 0,
        enabled_groups: 0x1e,
    };
    check!(
        SetFeature {
            feature_id: 2,
            data: groups.into_setting(),
            ..Default::default()
        },
        "SET_FEATURE(feature_id=AENQ_CONFIG, enabled_groups=0x1e) = SUCCESS"
    );
    check!(DeallocPd { pd: 1 }, "DEALLOC_PD(pd=1) = RESOURCE_BUSY");
    check!(
        DetachEventCounter {
            cntr_handle: 1,
            attach_type: 0,
            qp_handle: 7,
            events: QpEvents::from_raw(0x203),
        },
        "DETACH_EVENT_COUNTER(cntr_handle=1, attach_type=QP_EVENTS, qp_handle=7, \
         events=send_comp+send_comp_err+remote_write_comp) = UNSUPPORTED_OPCODE"
    );
}

#[test]
fn features() {
    let mut driver = Driver::new(Profile::Efa3);
    driver.world.trace.clear();
    driver.feature::<DeviceAttr>().unwrap();
    driver.feature::<AenqConfig>().unwrap();
    driver.feature::<NetworkAttr>().unwrap();
    driver.feature::<QueueAttr1>().unwrap();
    driver.feature::<QueueAttr2>().unwrap();
    driver.feature::<EventQueueAttr>().unwrap();
    driver.feature::<HwHints>().unwrap();
    let lines: Vec<&str> = driver
        .world
        .trace
        .iter()
        .filter(|line| line.starts_with("aq "))
        .map(|line| line.split_once(' ').unwrap().1)
        .collect();
    assert_eq!(
        lines,
        [
            "0 GET_FEATURE(feature_id=DEVICE_ATTR) = SUCCESS supported_features=0x2fe, \
             page_size_cap=0x7ffff000, fw_version=0x1, admin_api_version=0x1, device_version=0x3, db_bar=4, phys_addr_width=48, \
             virt_addr_width=57, device_caps=rdma_read+rnr_retry+rdma_write+unsolicited_write_recv, max_rdma_size=1073741824, \
             guid=0x10000feffa0ef02, max_link_speed_gbps=400 [1 in flight]",
            "1 GET_FEATURE(feature_id=AENQ_CONFIG) = SUCCESS supported_groups=0x1e, enabled_groups=0x0 [1 in flight]",
            "2 GET_FEATURE(feature_id=NETWORK_ATTR) = SUCCESS addr=fe80::2ef:a0ff:fe00:1, mtu=8928 [1 in flight]",
            "3 GET_FEATURE(feature_id=QUEUE_ATTR_1) = SUCCESS max_qp=256, max_sq_depth=4096, inline_buf_size=32, \
             max_rq_depth=32768, max_cq=512, max_cq_depth=32768, sub_cqs_per_cq=1, min_sq_depth=32, max_wr_send_sges=2, \
             max_wr_recv_sges=3, max_mr=65534, max_mr_pages=1048576, max_pd=256, max_ah=4096, max_llq_size=262144, \
             max_wr_rdma_sges=1, max_tx_batch=64 [1 in flight]",
            "4 GET_FEATURE(feature_id=QUEUE_ATTR_2) = SUCCESS inline_buf_size_ex=80, max_event_counters=0, \
             event_counter_max_val=0x0 [1 in flight]",
            "5 GET_FEATURE(feature_id=EVENT_QUEUE_ATTR) = SUCCESS max_eq=32, max_eq_depth=1024, event_bitmask=completion \
             [1 in flight]",
            "6 GET_FEATURE(feature_id=HW_HINTS) = SUCCESS mmio_read_timeout=0, driver_watchdog_timeout=0, \
             admin_completion_timeout=0, poll_interval=0 [1 in flight]",
        ]
    );
}

#[test]
fn other_events() {
    let mut driver = Driver::new(Profile::Efa2);
    assert_eq!(
        driver.world.trace,
        [
            "write MMIO_RESP_LO = 0x34560000",
            "write MMIO_RESP_HI = 0x12",
            "read DEV_STS = 0x1",
            "read CAPS = 0x303d",
            "write DEV_CTL = 0x1",
            "reset NORMAL",
            "write MMIO_RESP_LO = 0x34560000",
            "write MMIO_RESP_HI = 0x12",
            "read DEV_STS = 0x9",
            "write DEV_CTL = 0x0",
            "reset end",
            "read DEV_STS = 0x11",
            "write AQ_BASE_LO = 0x34562000",
            "write AQ_BASE_HI = 0x12",
            "write AQ_CAPS = 0x400020",
            "write ACQ_BASE_LO = 0x34564000",
            "write ACQ_BASE_HI = 0x12",
            "write AENQ_BASE_LO = 0x34566000",
            "write AENQ_BASE_HI = 0x12",
            "write ACQ_CAPS = 0x400020",
            "write AENQ_CAPS = 0x400010",
        ]
    );
    driver.world.trace.clear();
    let now = driver.now;
    driver
        .device
        .post_event(&mut driver.world, now, AenqGroup::Warning.into(), 3);
    driver.read_raw(0x0c);
    driver.write(Register::Caps, 1);
    driver.device.inject(
        serde_json::from_str(r#"{"when":{"register":"VERSION"},"then":{"silence":true}}"#).unwrap(),
    );
    driver.read_raw(0);
    let request = AqRequest {
        opcode: 99,
        ..AllocPd {}.to_request()
    };
    driver.submit_request(&request);
    for silent in [false, true] {
        let death = Death {
            silent,
            ..Death::default()
        };
        driver.device.die(&mut driver.world, now, death);
    }
    driver.device.clear();
    driver.reset(ResetReason::Generic);
    driver.set_up();
    driver.device.storm(9, 3, 100).unwrap();
    driver.run(std::time::Duration::ZERO);
    driver.device.unplug(&mut driver.world);
    driver.device.plug(&mut driver.world);
    driver.start_reset(ResetReason::AdminTimeout);
    let is_other = |line: &String| !line.contains("DEV_STS") && !line.starts_with("write ");
    driver.world.trace.retain(is_other);
    assert_eq!(
        driver.world.trace,
        [
            "aenq WARNING syndrome=3",
            "protocol error: read of 0xc, where no register exists",
            "read 0xc = 0xffffffff",
            "protocol error: write of 0x1 to CAPS, which is read-only",
            "read VERSION = no response (injected)",
            "aq 0 opcode 99() = BAD_OPCODE [1 in flight]",
            "aenq FATAL_ERROR syndrome=0",
            "dies",
            "dies silently",
            "read CAPS = 0x303d",
            "reset GENERIC",
            "reset end",
            "aenq group 9 syndrome=3 15 times, 85 pending",
            "unplugged",
            "plugged",
            "reset ADMIN_TO",
        ]
    );
}

/// The number of commands in flight includes the command that completes.
#[test]
fn commands_in_flight() {
    let mut driver = Driver::new(Profile::Efa2);
    driver.device.inject(
        serde_json::from_str(r#"{"when":{"opcode":"ANY"},"then":{"delay_ms":50}}"#).unwrap(),
    );
    driver.world.trace.clear();
    for _ in 0..3 {
        driver.submit(&AllocPd {});
    }
    driver.run(std::time::Duration::from_millis(50));
    assert_eq!(
        driver.world.trace,
        [
            "aq 0 ALLOC_PD() = SUCCESS pd=1 (injected) [3 in flight]",
            "aq 1 ALLOC_PD() = SUCCESS pd=2 (injected) [2 in flight]",
            "aq 2 ALLOC_PD() = SUCCESS pd=3 (injected) [1 in flight]",
        ]
    );
}
