// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Limits that a device reports, at, above and far above each, and counters of what fails.

use driver::{
    client::{self, DIRECT},
    fault::rule,
    program::{own_gid, Program},
    rig::{name_of, Rig},
};
use efa_model::Profile;
use ib_core::{
    cq, ffi as ib, registry, stats,
    umem::{self, Memory},
    uverbs::{zeroed, QpAttr},
    verbs,
};
use kernel::{error::Result, page::PAGE_SIZE};

use crate::{run_bound_with, run_with};

/// What a program or a client chooses.
#[derive(Clone, Copy, Debug)]
enum Choice {
    CqEntries,
    Sends,
    SendRing,
    Recvs,
    SendBuffers,
    RecvBuffers,
    Inline,
    Pages,
    ClientCqEntries,
    ClientSends,
    ClientRecvs,
    ClientDescriptors,
    ClientSendBuffers,
    ClientRecvBuffers,
    ClientInline,
    ClientPages,
}
use Choice::*;

/// Attributes of the device. The limits below are these.
const ATTRIBUTES: &str = r#"{
    "max_cq_depth": 128, "max_sq_depth": 64, "max_llq_size": 4096, "max_rq_depth": 128, "max_wr_send_sges": 2,
    "max_wr_recv_sges": 3, "inline_buf_size_ex": 80, "max_mr_pages": 16, "page_size_cap": 4096
}"#;

/// Choices, the largest possible value of each, and the error above it.
const LIMITS: [(Choice, u32, &str); 16] = [
    (CqEntries, 128, "EINVAL"),
    (Sends, 64, "EINVAL"),
    (SendRing, 4096, "EINVAL"),
    (Recvs, 128, "EINVAL"),
    (SendBuffers, 2, "EINVAL"),
    (RecvBuffers, 3, "EINVAL"),
    (Inline, 80, "EINVAL"),
    (Pages, 16, "ENOMEM"),
    (ClientCqEntries, 128, "EINVAL"),
    (ClientSends, 64, "EINVAL"),
    (ClientRecvs, 128, "EINVAL"),
    // Three descriptors each, which are as many as a power of two.
    (ClientDescriptors, 42, "EINVAL"),
    (ClientSendBuffers, 2, "EINVAL"),
    (ClientRecvBuffers, 3, "EINVAL"),
    (ClientInline, 80, "EINVAL"),
    (ClientPages, 16, "EINVAL"),
];

/// Creates what `choice` belongs to, with that value. Returns the result and the number of commands that it took.
fn create(rig: &Rig, choice: Choice, value: u32) -> (Result, u64) {
    let commands = || rig.device().admin.submitted;
    let mut cap: ib::ib_qp_cap = zeroed();
    (cap.max_send_wr, cap.max_recv_wr) = (32, 16);
    (cap.max_send_sge, cap.max_recv_sge) = (1, 1);
    match choice {
        Sends | ClientSends => cap.max_send_wr = value,
        Recvs | ClientRecvs => cap.max_recv_wr = value,
        ClientDescriptors => (cap.max_recv_wr, cap.max_recv_sge) = (value, 3),
        SendBuffers | ClientSendBuffers => cap.max_send_sge = value,
        RecvBuffers | ClientRecvBuffers => cap.max_recv_sge = value,
        Inline | ClientInline => cap.max_inline_data = value,
        _ => {}
    }
    if choice as u32 >= ClientCqEntries as u32 {
        let device = registry::registered().unwrap();
        let mut objects = client::Objects::new(device, DIRECT).unwrap();
        let mut attr = objects.qp_attr();
        attr.cap = cap;
        let before = commands();
        // SAFETY: The device is registered, and the domain exists.
        let result = unsafe {
            match choice {
                ClientCqEntries => cq::alloc_cq(device, value, DIRECT).map(|cq| cq::free_cq(cq)),
                ClientPages => verbs::alloc_mr(objects.pd, value)
                    .and_then(|mr| verbs::dereg_mr(mr, core::ptr::null_mut())),
                _ => objects.new_qp(&mut attr),
            }
        };
        let taken = commands() - before;
        drop(objects);
        return (result, taken);
    }
    let program = Program::new().unwrap();
    let pd = program.alloc_pd().unwrap();
    let cq = program.create_cq(16, false, None).unwrap().id;
    let ring = match choice {
        SendRing => value,
        Sends => 4096,
        _ => 2048,
    };
    let input = [0, 2048, ring, 0, 0, 0].map(u32::to_le_bytes).concat();
    let before = commands();
    let result = match choice {
        CqEntries => program.create_cq(value, false, None).map(drop),
        Pages => {
            let length = u64::from(value) * PAGE_SIZE as u64;
            let memory = Memory::new(length as usize);
            program.register(pd, memory.address(), length).map(drop)
        }
        _ => {
            let attr = QpAttr {
                pd,
                send_cq: cq,
                recv_cq: cq,
                kind: ib::ib_qp_type_IB_QPT_DRIVER,
                cap,
            };
            program.process.create_qp(attr, &input, &mut []).map(drop)
        }
    };
    (result, commands() - before)
}

/// A value above a limit is no command, also if its lower bits are a valid value.
#[test]
fn are_not_exceeded() {
    for (choice, limit, error) in LIMITS {
        for (value, wanted) in [
            (limit, "ok"),
            (limit + 1, error),
            ((1 << 16) + limit, error),
        ] {
            run_with(Profile::Efa3, |rig| {
                rig.set(ATTRIBUTES);
                rig.probe().unwrap();
                let (result, commands) = create(rig, choice, value);
                assert_eq!(name_of(result), wanted, "{choice:?} {value}");
                // A client has destroyed its earlier queue pair.
                let most = u64::from(choice as u32 >= ClientSends as u32);
                assert!(wanted == "ok" || commands <= most, "{choice:?} {value}");
                rig.check_device();
            });
        }
    }
}

/// Programs and clients see the attributes of the device, each in its place.
#[test]
fn of_a_device_are_its_attributes() {
    run_with(Profile::Efa4, |rig| {
        rig.set(
            r#"{
                "max_mr_pages": 16, "page_size_cap": 12288, "max_qp": 101, "max_sq_depth": 100, "max_rq_depth": 130,
                "max_wr_send_sges": 5, "max_wr_recv_sges": 6, "max_wr_rdma_sges": 7, "max_cq": 102, "max_cq_depth": 200,
                "max_mr": 103, "max_pd": 104, "max_ah": 105, "max_event_counters": 107, "event_counter_max_val": 108
            }"#,
        );
        rig.probe().unwrap();
        // SAFETY: The device is registered.
        let attrs = unsafe { &(*registry::registered().unwrap()).attrs };
        let sizes = [attrs.max_mr_size, attrs.page_size_cap];
        assert_eq!(sizes, [16 * PAGE_SIZE as u64, 12288]);
        assert_eq!(attrs.max_pkeys, 1);
        let limits = [
            (attrs.max_qp, 101),
            // Depths of clients are powers of two.
            (attrs.max_qp_wr, 64),
            (attrs.max_send_sge, 5),
            (attrs.max_recv_sge, 6),
            (attrs.max_sge_rd, 7),
            (attrs.max_cq, 102),
            (attrs.max_cqe, 128),
            (attrs.max_mr, 103),
            (attrs.max_pd, 104),
            (attrs.max_ah, 105),
        ];
        for (index, (limit, wanted)) in limits.into_iter().enumerate() {
            assert_eq!(limit, wanted, "limit {index}");
        }
        let caps = counters();
        // A completion counter is two event counters.
        assert_eq!((caps.max_counters, caps.max_value), (53, 108));
    });
}

/// Returns the capabilities of completion counters.
fn counters() -> ib::ib_comp_cntr_caps {
    let mut caps = zeroed();
    let device = registry::registered().unwrap();
    // SAFETY: The device is registered, and the function fills the structure.
    unsafe {
        let query = (*device).ops.query_comp_cntr_caps.unwrap();
        assert_eq!(query(device, &raw mut caps, core::ptr::null_mut()), 0);
    }
    caps
}

/// A queue pair's operation has a completion counter if the device counts both its successes and its failures. Those of a peer
/// do not fail.
#[test]
fn of_counters_are_events_of_the_device() {
    // Events of successes and failures, and the operation that has both.
    let pairs = [(0, 0), (2, 1), (4, 2), (6, 4)];
    let sets = pairs.into_iter().flat_map(|(event, operation)| {
        (1..=3).map(move |set| (set << event, u32::from(set == 3) << operation))
    });
    for (events, operations) in sets.chain([(1 << 8, 1 << 3), (1 << 9, 1 << 5)]) {
        run_with(Profile::Efa4, |rig| {
            rig.set(&format!(r#"{{"event_counter_events": {events}}}"#));
            rig.probe().unwrap();
            let found = counters().supported_qp_attach_ops;
            assert_eq!(found, operations, "{events:#b}");
        });
    }
}

/// Speeds of a link in Gbit/s, from which on a port has this width and speed.
const LINKS: [(u64, u32, u32); 11] = [
    (1600, 4, 256),
    (800, 4, 128),
    (400, 4, 64),
    (200, 2, 64),
    (120, 8, 8),
    (100, 2, 32),
    (60, 8, 2),
    (50, 1, 64),
    (40, 2, 8),
    (30, 8, 1),
    (25, 1, 32),
];

/// The speed of the link is that of the device, and width and speed as InfiniBand has them are at most that, if there are such.
#[test]
fn of_a_port_are_those_of_the_link() {
    let core = || registry::registered().unwrap();
    let below = LINKS
        .windows(2)
        .map(|two| (two[0].0 - 1, two[1].1, two[1].2));
    for (gbps, width, speed) in below.chain(LINKS) {
        run_with(Profile::Efa4, |rig| {
            rig.set(&format!(r#"{{"link_gbps": {gbps}}}"#));
            rig.probe().unwrap();
            let (mut attr, mut found): (ib::ib_port_attr, u64) = (zeroed(), 0);
            // SAFETY: The device is registered, and the functions fill what they get.
            unsafe {
                let ops = &(*core()).ops;
                assert_eq!(ops.query_port.unwrap()(core(), 1, &raw mut attr), 0);
                let query = ops.query_port_speed.unwrap();
                assert_eq!(query(core(), 1, &raw mut found), 0);
            }
            let port = (attr.active_width, attr.active_speed);
            assert_eq!((port.0.into(), port.1.into()), (width, speed), "{gbps}");
            assert_eq!(found, 10 * gbps);
        });
    }
}

/// A port has one GID and one partition key, and a device the version of its firmware.
#[test]
fn of_tables_are_one_entry() {
    run_bound_with(Profile::Efa4, |_| {
        let core = registry::registered().unwrap();
        let (mut gid, mut pkey): (ib::ib_gid, u16) = (zeroed(), 0);
        let mut version = [1; ib::IB_FW_VERSION_NAME_MAX as usize];
        // SAFETY: The device is registered, and the functions fill what they get.
        unsafe {
            let ops = &(*core).ops;
            for (index, wanted) in [(0, 0), (1, -22)] {
                let query = ops.query_gid.unwrap();
                assert_eq!(query(core, 1, index, &raw mut gid), wanted);
                let query = ops.query_pkey.unwrap();
                assert_eq!(query(core, 1, index as u16, &raw mut pkey), wanted);
            }
            ops.get_dev_fw_str.unwrap()(core, version.as_mut_ptr());
        }
        assert_eq!(pkey, 0xffff);
        let end = version.iter().position(|byte| *byte == 0).unwrap();
        assert!(
            version[..end].starts_with(b"0x") && end == 10,
            "{version:?}"
        );
    });
}

/// A list of pages fits into the command, into one block of memory, or into a chain of blocks. The device sees all of the region.
#[test]
fn of_regions_are_sizes_of_any_list() {
    /// Number of pages whose list fills the blocks to which one block of a chain refers.
    const CHUNK: u64 = 510 * 512;
    const PAGES: [u64; 11] = [
        1,
        4,
        5,
        513,
        8192,
        8193,
        16384,
        CHUNK,
        2 * CHUNK,
        3 * CHUNK,
        (1 << 20) + 1,
    ];
    for (pages, in_pieces) in PAGES.into_iter().zip([true, false].into_iter().cycle()) {
        run_with(Profile::Efa3, |rig| {
            rig.set(r#"{"page_size_cap": 4096, "max_mr_pages": 2097152}"#);
            rig.probe().unwrap();
            umem::set_in_pieces(in_pieces);
            let program = Program::new().unwrap();
            let pd = program.alloc_pd().unwrap();
            let length = pages * PAGE_SIZE as u64;
            let memory = Memory::new(length as usize);
            program.register(pd, memory.address(), length).unwrap();
            let state = rig.device().resources;
            assert_eq!(state.mr_pages as u64, pages);
            let lengths: Vec<_> = rig.shared.with(|device, _, now| {
                let regions = device.snapshot(now).memory_regions;
                regions.iter().map(|region| region.length).collect()
            });
            assert_eq!(lengths, [length]);
            drop(program);
            rig.check_device();
        });
    }
}

/// The device reports a doorbell behind the end of its BAR, which no program may map.
#[test]
fn of_a_bar_hold_for_doorbells() {
    run_bound_with(Profile::Efa3, |rig| {
        let program = Program::new().unwrap();
        rig.inject(rule(
            r#"{"when": {"opcode": "CREATE_CQ"}, "then": {"corrupt": [{"offset": 15, "value": 255}]}}"#,
        ));
        let result = program.create_cq(16, true, None).map(drop);
        assert_eq!(name_of(result), "EINVAL");
        drop(program);
        rig.check_device();
    });
}

/// Calls a verb that fails, and returns the counters that have changed.
fn changed(fails: impl FnOnce(&Rig, &Program, u32) -> Result) -> Vec<String> {
    run_bound_with(Profile::Efa4, |rig| {
        let program = Program::new().unwrap();
        let pd = program.alloc_pd().unwrap();
        let read = || stats::read_stats(registry::registered().unwrap(), 0).unwrap();
        let before = read();
        assert!(fails(rig, &program, pd).is_err());
        let pairs = read().into_iter().zip(before);
        let is_error = |name: &str| name.ends_with("_err") && name != "cmds_err";
        let moved = pairs.filter(|((name, now), (_, before))| is_error(name) && now != before);
        moved
            .map(|((name, now), (_, before))| format!("{name} {}", now - before))
            .collect()
    })
}

/// The device refuses the next command with this opcode.
fn refuse(rig: &Rig, opcode: &str) {
    rig.inject(rule(&format!(
        r#"{{"when": {{"opcode": "{opcode}"}}, "then": {{"status": "UNKNOWN_ERROR"}}, "times": 1}}"#
    )));
}

/// A failure counts once, and in one counter.
#[test]
fn of_verbs_count_failures() {
    let client = || client::Objects::new(registry::registered().unwrap(), DIRECT);
    let one = |name: &str| vec![format!("{name} 1")];
    for (opcode, name) in [
        ("CREATE_CQ", "create_cq_err"),
        ("CREATE_QP", "create_qp_err"),
        ("CREATE_AH", "create_ah_err"),
        ("ALLOC_PD", "alloc_pd_err"),
        ("REG_MR", "get_dma_mr_err"),
    ] {
        let by_client = changed(|rig, _, _| {
            refuse(rig, opcode);
            client().map(drop)
        });
        assert_eq!(by_client, one(name), "{opcode} of a client");
        if opcode == "REG_MR" {
            continue;
        }
        let by_program = changed(|rig, program, pd| {
            let cq = program.create_cq(16, false, None)?.id;
            refuse(rig, opcode);
            program.alloc_pd()?;
            program.create_cq(16, false, None)?;
            program.create_qp(pd, cq, true, 32, 16)?;
            program.create_ah(pd, &own_gid()?).map(drop)
        });
        assert_eq!(by_program, one(name), "{opcode} of a program");
    }
    let by_region = changed(|rig, program, pd| {
        let memory = Memory::new(PAGE_SIZE);
        refuse(rig, "REG_MR");
        program.register(pd, memory.address(), 1).map(drop)
    });
    assert_eq!(by_region, one("reg_mr_err"));
    let by_context = changed(|rig, _, _| {
        refuse(rig, "ALLOC_UAR");
        Program::new().map(drop)
    });
    assert_eq!(by_context, one("alloc_ucontext_err"));
    let by_mapping = changed(|_, program, _| program.process.map(1 << 30, 4096).map(drop));
    assert_eq!(by_mapping, one("mmap_err"));
    let by_fast_region = changed(|rig, _, _| {
        let objects = client()?;
        refuse(rig, "ALLOC_MR");
        // SAFETY: The domain exists.
        unsafe { verbs::alloc_mr(objects.pd, 4) }.map(drop)
    });
    assert_eq!(by_fast_region, one("alloc_mr_err"));
}
