// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The trace, with one line for each operation and event.

use efa_hw::{
    admin::{
        AqRequest, Command, CtrlBuffInfo,
        ah::{CreateAh, DestroyAh},
        cq::{CqCaps1, CqCaps2, CreateCq, DestroyCq},
        eq::{CreateEq, CreateEqCaps, DestroyEq},
        event_counter::{
            AttachEventCounter, CreateEventCounter, DestroyEventCounter, DetachEventCounter,
            ModifyEventCounter, QpEvents,
        },
        mr::{AllocMr, DeregMr, PageList, RegMr, RegMrFlags, RegMrPermissions},
        pd::{AllocPd, DeallocPd},
        qp::{CreateQp, CreateQpFlags, DestroyQp, ModifyQp, ModifyQpMask, QueryQp},
        uar::{AllocUar, DeallocUar},
    },
    aenq::AenqGroup,
    features::{
        AenqConfig, DeviceAttr, EqEvents, EventQueueAttr, HwHints, NetworkAttr, QueueAttr1,
        QueueAttr2, SetFeature,
    },
    regs::{Register, ResetReason},
    stats::GetStats,
};
use efa_model::{Death, Profile};
use efa_testing::mock::Driver;

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
    let mut check = |driver: &mut Driver, command: &dyn Fn(&mut Driver) -> Vec<String>, line| {
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
        CreateEq {
            depth: 1024,
            msix_vector: 2,
            caps: CreateEqCaps {
                entry_size_words: 4
            },
            base_address: 0x1000,
            events: EqEvents { completion: true },
        },
        "CREATE_EQ(depth=1024, entry=16B, vector=2, ba=0x1000, completions) = SUCCESS eq=1"
    );
    check!(
        CreateCq {
            caps_1: CqCaps1 {
                interrupt_mode_enabled: true,
                virt: false
            },
            caps_2: CqCaps2 {
                cq_entry_size_words: 8,
                set_src_addr: true,
                ..CqCaps2::default()
            },
            sub_cq_depth: 256,
            eqn: 1,
            base_address: 0x2000,
            num_sub_cqs: 1,
            uar: 1,
            ..Default::default()
        },
        "CREATE_CQ(uar=1, depth=256, entry=32B, sub_cqs=1, ba=0x2000, eq=1, src_addr) = \
         SUCCESS cq=1, depth=256, db=0x1000"
    );
    check!(
        CreateQp {
            pd: 1,
            qp_type: 2,
            flags: CreateQpFlags {
                unsolicited_write_recv: true,
                ..Default::default()
            },
            rq_base_addr: 0x3000,
            send_cq_idx: 1,
            recv_cq_idx: 1,
            send_queue_ring_size: 128 * 128,
            send_queue_depth: 128,
            recv_queue_ring_size: 512,
            recv_queue_depth: 32,
            uar: 1,
            sl: 8,
            ..Default::default()
        },
        "CREATE_QP(SRD, pd=1, uar=1, send_cq=1, recv_cq=1, sq=128/16384B, rq=32/512B, \
         rq_ba=0x3000, sl=8, unsolicited_write_recv) = \
         SUCCESS qp=1, qpn=1, sq_db=0x0, rq_db=0x8, llq=0x0"
    );
    check!(
        ModifyQp {
            modify_mask: ModifyQpMask {
                qp_state: true,
                cur_qp_state: true,
                qkey: true,
                ..Default::default()
            },
            qp_handle: 1,
            qp_state: 1,
            cur_qp_state: 0,
            qkey: 0x1234,
            ..Default::default()
        },
        "MODIFY_QP(qp=1, from=RESET, to=INIT, qkey=0x1234) = SUCCESS"
    );
    check!(
        ModifyQp {
            modify_mask: ModifyQpMask::from_raw(0b11_1001),
            qp_handle: 1,
            qp_state: 77,
            sq_psn: 0xab,
            sq_drained_async_notify: true,
            rnr_retry: 7,
            ..Default::default()
        },
        "MODIFY_QP(qp=1, to=77, sq_psn=0xab, notify=true, rnr_retry=7) = ILLEGAL_PARAMETER"
    );
    check!(
        QueryQp { qp_handle: 1 },
        "QUERY_QP(qp=1) = SUCCESS INIT, qkey=0x1234, sq_psn=0x0, rnr_retry=7"
    );
    check!(
        CreateAh {
            pd: 1,
            dest_addr: [
                0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0xef, 0xa0, 0xff, 0xfe, 0, 0, 1
            ],
        },
        "CREATE_AH(pd=1, dest=fe80::2ef:a0ff:fe00:1) = SUCCESS ah=1"
    );
    let region = |list| {
        let mut command = RegMr {
            pd: 1,
            mr_length: 0x1000,
            flags: RegMrFlags {
                phys_page_size_shift: 12,
                mem_addr_phy_mode_en: false,
            },
            permissions: RegMrPermissions {
                local_write_enable: true,
                remote_write_enable: true,
                remote_read_enable: true,
                relaxed_ordering: true,
            },
            iova: 0x7000,
            ..Default::default()
        };
        command.set_page_list(list);
        command
    };
    check!(
        region(PageList::Inline([0x4000, 0, 0, 0])),
        "REG_MR(pd=1, iova=0x7000, length=4096, page_shift=12, page_num=0, pages=[4000, 0, 0, 0], \
         local_write, remote_write, remote_read, relaxed_ordering) = SUCCESS lkey=0x1, rkey=0x80001"
    );
    let buffer = CtrlBuffInfo {
        length: 20,
        address: 0x5000,
    };
    check!(
        region(PageList::Direct(buffer)),
        "REG_MR(pd=1, iova=0x7000, length=4096, page_shift=12, page_num=0, direct=0x5000/20B, \
         local_write, remote_write, remote_read, relaxed_ordering) = MALFORMED_REQUEST"
    );
    let mut physical = region(PageList::Indirect(buffer));
    physical.flags.mem_addr_phy_mode_en = true;
    check!(
        physical,
        "REG_MR(pd=1, iova=0x7000, length=4096, page_shift=12, page_num=0, indirect=0x5000/20B, \
         physical, local_write, remote_write, remote_read, relaxed_ordering) = MALFORMED_REQUEST"
    );
    check!(
        AllocMr {
            pd: 1,
            max_pages: 9
        },
        "ALLOC_MR(pd=1, max_pages=9) = SUCCESS lkey=0x2, rkey=0x80002"
    );
    check!(
        GetStats {
            stats_type: 4,
            ..Default::default()
        },
        "GET_STATS(NETWORK) = SUCCESS"
    );
    check!(
        GetStats {
            stats_type: 9,
            scope: 1,
            scope_modifier: 3,
            ..Default::default()
        },
        "GET_STATS(9, scope=QUEUE/3) = UNSUPPORTED_OPCODE"
    );
    check!(
        SetFeature {
            feature_id: 2,
            data: AenqConfig {
                supported_groups: 0,
                enabled_groups: 0x1e
            }
            .into_setting(),
            ..Default::default()
        },
        "SET_FEATURE(AENQ_CONFIG, enabled=0x1e) = SUCCESS"
    );
    check!(DestroyQp { qp_handle: 1 }, "DESTROY_QP(qp=1) = SUCCESS");
    check!(DestroyCq { cq_idx: 1 }, "DESTROY_CQ(cq=1) = SUCCESS");
    check!(DestroyEq { eqn: 1 }, "DESTROY_EQ(eq=1) = SUCCESS");
    check!(
        DestroyAh { ah: 1, pd: 1 },
        "DESTROY_AH(pd=1, ah=1) = SUCCESS"
    );
    check!(DeregMr { l_key: 1 }, "DEREG_MR(lkey=0x1) = SUCCESS");
    check!(DeallocPd { pd: 1 }, "DEALLOC_PD(pd=1) = RESOURCE_BUSY");
    check!(DeallocUar { uar: 1 }, "DEALLOC_UAR(uar=1) = SUCCESS");
}

#[test]
fn event_counters() {
    let mut driver = Driver::new(Profile::Efa3);
    let overrides = r#"{"event_counters":true,"max_event_counters":2,"event_counter_max_val":255,
        "event_counter_events":1023}"#;
    driver.device.set(serde_json::from_str(overrides).unwrap());
    driver.execute(&AllocUar {}).unwrap();
    let paddr = driver.world.map(1);
    let mut id = 1;
    let mut check = |lines: Vec<String>, line: &str| {
        assert_eq!(lines, [format!("aq {id} {line} [1 in flight]")]);
        id += 1;
    };
    macro_rules! check {
        ($command:expr, $line:expr) => {
            check(traced(&mut driver, &$command), $line)
        };
    }
    check!(
        CreateEventCounter { uar: 1, paddr },
        &format!("CREATE_EVENT_COUNTER(uar=1, pa={paddr:#x}) = SUCCESS counter=1")
    );
    for (operation, end) in [
        (0, "SET, value=5) = SUCCESS"),
        (1, "ADD, value=5) = SUCCESS"),
        (9, "9, value=5) = ILLEGAL_PARAMETER"),
    ] {
        check!(
            ModifyEventCounter {
                cntr_handle: 1,
                operation,
                value: 5
            },
            &format!("MODIFY_EVENT_COUNTER(counter=1, {end}")
        );
    }
    check!(
        AttachEventCounter {
            cntr_handle: 1,
            qp_handle: 7,
            events: QpEvents::from_raw(0x203),
            ..Default::default()
        },
        "ATTACH_EVENT_COUNTER(counter=1, qp=7, events=0x203) = ILLEGAL_PARAMETER"
    );
    check!(
        DetachEventCounter {
            cntr_handle: 1,
            attach_type: 3,
            qp_handle: 7,
            events: QpEvents::default(),
        },
        "DETACH_EVENT_COUNTER(counter=1, qp=7, events=0x0, type=3) = ILLEGAL_PARAMETER"
    );
    check!(
        DestroyEventCounter { cntr_handle: 1 },
        "DESTROY_EVENT_COUNTER(counter=1) = SUCCESS"
    );
    driver.world.trace.clear();
    driver.feature::<QueueAttr2>().unwrap();
    let line = "(QUEUE_ATTR_2) = SUCCESS inline=80B, counters=2, max_val=0xff, events=0x3ff [";
    assert!(driver.world.traced(&[line]));
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
            "0 GET_FEATURE(DEVICE_ATTR) = SUCCESS features=0x2fe, caps=0x1b, \
             guid=0x2efa0fffe000001, db_bar=4, link=400Gbps [1 in flight]",
            "1 GET_FEATURE(AENQ_CONFIG) = SUCCESS supported=0x1e, enabled=0x0 [1 in flight]",
            "2 GET_FEATURE(NETWORK_ATTR) = SUCCESS address=fe80::2ef:a0ff:fe00:1, mtu=8928 \
             [1 in flight]",
            "3 GET_FEATURE(QUEUE_ATTR_1) = SUCCESS qp=256, cq=512, mr=65534, pd=256, ah=4096, \
             sq=4096, rq=32768, cqe=32768 [1 in flight]",
            "4 GET_FEATURE(QUEUE_ATTR_2) = SUCCESS inline=80B [1 in flight]",
            "5 GET_FEATURE(EVENT_QUEUE_ATTR) = SUCCESS eq=32, eqe=1024 [1 in flight]",
            "6 GET_FEATURE(HW_HINTS) = SUCCESS mmio=0ms, watchdog=0ms, admin=0ms, poll=0ms \
             [1 in flight]",
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
