// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Traces, captures and snapshots of machines that exchange data.

use std::{
    env,
    ffi::OsStr,
    fs::{self, File, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
};

use efa_testing::prelude::*;
use pcap_file::pcapng::{Block, PcapNgReader, blocks::enhanced_packet::EnhancedPacketOption};
use serde_json::{Value, json};

/// Kinds of records of a capture.
const DATA: u8 = 1;
const ACK: u8 = 2;
const SEND: u8 = 4;
const RECEIVE: u8 = 5;
const COMPLETION: u8 = 6;
const EVENT: u8 = 7;

/// Sends one message or datagram from the first device to the second.
fn send(emulator: &Emulator, qp_type: QpType, bytes: &[u8]) {
    let [mut a, mut b] = End::pair([0, 1].map(|at| emulator.device(at)), qp_type);
    a.fill(bytes);
    b.receive(0, 8928);
    // The response comes after the device has seen the doorbell.
    b.machine.read(Register::DevSts);
    // CAST: a small number.
    let send = Send::message(&b.qp, &a.region, bytes.len() as u32);
    assert_eq!(a.run(&send), CompStatus::Ok);
    assert_eq!(b.wait(), CompStatus::Ok);
}

/// Waits until a trace has `count` lines; returns them without the time.
fn lines(path: &Path, count: usize) -> Vec<String> {
    wait_for("trace with enough lines", || {
        let text = fs::read_to_string(path).unwrap();
        match text.lines().count() >= count {
            true => Ok(text.lines().map(|line| line[13..].to_owned()).collect()),
            false => Err(text),
        }
    })
}

#[test]
fn work_requests_and_completions_are_traced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let trace = ["--trace", path.to_str().unwrap(), "--trace-filter", "work"];
    let emulator = Emulator::start(2, &trace);
    send(&emulator, QpType::Srd, &[0xa5; 64]);
    let lines = lines(&path, 4);
    let starts = [
        "0 sq 1 SEND(req_id=0, ctrl2=comp_req, dest_qp_num=1, length=1, immediate_data=0x0, ah=1, ",
        "1 rq 1 RECV([buf_addr=0x",
        "0 cq 1 sq 1 SEND(req_id=0, length=0, ah=0, src_qp_num=0, imm=0x0) = OK",
        "1 cq 1 rq 1 SEND(req_id=32768, length=64, ah=1, src_qp_num=1, imm=0x0) = OK",
    ];
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{lines:#?}");
    }
    assert!(lines[0].contains(", [length=64, lkey=0x") && lines[1].contains("req_id=32768"), "{lines:#?}");
    assert_eq!(lines.len(), 4);
}

/// A record of a capture.
struct Record {
    device: u32,
    /// Direction of a packet: 1 if it has arrived, 2 if it has left.
    direction: Option<u32>,
    length: u32,
    data: Vec<u8>,
}

impl Record {
    fn kind(&self) -> u8 {
        assert_eq!(self.data[0], 1);
        self.data[1]
    }

    fn payload(&self) -> &[u8] {
        let header = u16::from_le_bytes([self.data[2], self.data[3]]);
        &self.data[header.into()..]
    }
}

/// Waits until the records of a capture are enough; returns them.
fn records(path: &Path, enough: impl Fn(&[Record]) -> bool) -> Vec<Record> {
    wait_for("capture with enough records", || {
        let mut records = Vec::new();
        let mut reader = PcapNgReader::new(File::open(path).unwrap()).unwrap();
        while let Some(Ok(block)) = reader.next_block() {
            if let Block::EnhancedPacket(block) = block {
                let flags = block.options.iter().find_map(|option| match option {
                    EnhancedPacketOption::Flags(flags) => Some(*flags),
                    _ => None,
                });
                records.push(Record {
                    device: block.interface_id,
                    direction: flags,
                    length: block.original_len,
                    data: block.data.to_vec(),
                });
            }
        }
        match enough(&records) {
            true => Ok(records),
            false => Err(records.len()),
        }
    })
}

/// Writes to the second device, reads from it, and attempts to read with an invalid key.
fn transfer(emulator: &Emulator) {
    let [mut a, b] = End::pair([0, 1].map(|at| emulator.device(at)), QpType::Srd);
    a.write_to(&b, &[7; 5000]);
    let mut read = Send::read(&b.qp, &a.region, &b.region, 300);
    assert_eq!(a.run(&read), CompStatus::Ok);
    // No memory has this key.
    read.remote = Some((0, 300, 0x12345));
    assert_eq!(a.run(&read), CompStatus::RemoteBadAddress);
}

/// Wireshark's view of a capture with at least one record of each kind, without the events.
const SHOWN: &str = "\
efa0 Send work request: queue pair 1, SEND, id 0, to 1, 64 bytes
efa0 Data: send 1 > 1, connection 0, psn 0, message 0, offset 0, 64 bytes
efa1 Data: connection 0, psn 0, message 0, offset 0, 64 bytes
efa1 Receive work request: queue pair 1, id 32768, 8928 bytes
efa1 Acknowledgement: connection 0, psn 0 delivered
efa0 Acknowledgement: connection 0, psn 0 delivered
efa0 Completion: queue 1, send queue of queue pair 1, SEND, id 0: OK
efa1 Completion: queue 1, receive queue of queue pair 1, SEND, id 32768: OK
efa0 Send work request: queue pair 1, RDMA_WRITE, id 0, to 1, 5000 bytes
efa0 Data: RDMA write 1 > 1, connection 1, psn 0, message 0, offset 0, 5000 bytes
efa1 Data: connection 1, psn 0, message 0, offset 0, 5000 bytes
efa1 Acknowledgement: connection 1, psn 0 delivered
efa0 Acknowledgement: connection 1, psn 0 delivered
efa0 Completion: queue 1, send queue of queue pair 1, RDMA_WRITE, id 0: OK
efa0 Send work request: queue pair 1, RDMA_READ, id 1, to 1, 300 bytes
efa0 Data: RDMA read 1 > 1, connection 1, psn 1, message 1, offset 0, 0 bytes
efa1 Data: connection 1, psn 1, message 1, offset 0, 0 bytes
efa1 Acknowledgement: connection 1, psn 1 delivered
efa0 Acknowledgement: connection 1, psn 1 delivered
efa1 Data: RDMA read response 1 > 1, connection 0, psn 0, message 0, offset 0, 300 bytes
efa0 Data: connection 0, psn 0, message 0, offset 0, 300 bytes
efa0 Acknowledgement: connection 0, psn 0 delivered
efa1 Acknowledgement: connection 0, psn 0 delivered
efa0 Completion: queue 1, send queue of queue pair 1, RDMA_READ, id 1: OK
efa0 Send work request: queue pair 1, RDMA_READ, id 2, to 1, 300 bytes
efa0 Data: RDMA read 1 > 1, connection 1, psn 2, message 2, offset 0, 0 bytes
efa1 Data: connection 1, psn 2, message 2, offset 0, 0 bytes
efa1 Acknowledgement: connection 1, psn 2 failed (REMOTE_ERROR_BAD_ADDRESS)
efa0 Acknowledgement: connection 1, psn 2 failed (REMOTE_ERROR_BAD_ADDRESS)
efa0 Completion: queue 1, send queue of queue pair 1, RDMA_READ, id 2: REMOTE_ERROR_BAD_ADDRESS
efa0 Send work request: queue pair 1, SEND, id 0, to 1, 100 bytes
efa0 Datagram: 1 > 1, 100 bytes
efa1 Datagram: 1 > 1, 100 bytes
efa1 Receive work request: queue pair 1, id 32768, 8928 bytes
efa0 Completion: queue 1, send queue of queue pair 1, SEND, id 0: OK
efa1 Completion: queue 1, receive queue of queue pair 1, SEND, id 32768: OK
";

/// Returns the lines that tshark prints.
fn tshark(tshark: &OsStr, capture: &Path, arguments: &[&str]) -> Vec<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../wireshark/efa.lua");
    let output = Command::new(tshark)
        .args(["-n", "-X", &format!("lua_script:{script}"), "-r"])
        .arg(capture)
        .args(arguments)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !error.contains("Lua"), "{error}");
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(|line| line.replace('\t', " ")).collect()
}

/// tests/test_emulator.py runs this. It needs tshark, named by `EFA_TSHARK`, which loads no scripts when it runs as root.
#[test]
#[ignore = "needs tshark, named by EFA_TSHARK"]
fn wireshark_shows_a_capture() {
    let program = env::var_os("EFA_TSHARK").expect("EFA_TSHARK");
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let path = folder.path().join("efa.pcapng");
    let emulator = Emulator::start(2, &["--capture", path.to_str().unwrap()]);
    send(&emulator, QpType::Srd, &[0xa5; 64]);
    transfer(&emulator);
    send(&emulator, QpType::Ud, &[0; 100]);
    let records = records(&path, |records| {
        let others = records.iter().filter(|record| record.kind() != EVENT);
        others.count() >= SHOWN.lines().count()
    });
    // tshark runs as another user.
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let columns = "-T fields -e frame.interface_name -e _ws.col.Info";
    let columns: Vec<_> = columns.split(' ').collect();
    let mut shown = tshark(&program, &path, &columns);
    assert_eq!(shown.len(), records.len());
    assert!(shown.contains(&"efa0 Event: reset end".into()), "{shown:#?}");
    shown.retain(|line| !line.contains(" Event: "));
    // A datagram's sender does not wait for its receiver.
    let sorted = |mut lines: Vec<String>| {
        lines[31..].sort();
        lines
    };
    let expected = SHOWN.lines().map(str::to_owned).collect();
    assert_eq!(sorted(shown), sorted(expected));
    for (filter, count) in [
        ("_ws.malformed || _ws.lua.error || efa.unknown", 0),
        ("efa.payload[0:4] == a5:a5:a5:a5", 1),
        ("efa.failed", 3),
        ("efa.rkey == 0x12345", 2),
        ("efa.type == 6 && efa.q_type == 2", 2),
        ("efa.event contains \"CREATE_QP\"", 6),
    ] {
        let lines = tshark(&program, &path, &["-Y", filter]);
        assert_eq!(lines.len(), count, "{filter}: {lines:#?}");
    }
}

/// All records of an exchange can be read, whichever paths the packets took. Packets have no more payload than was requested.
#[test]
fn a_capture_of_two_emulators_has_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("efa.pcapng");
    let capture = ["--capture", path.to_str().unwrap(), "--capture-snap", "16"];
    let emulators = Emulator::pair(&capture);
    let sockets = emulators.each_ref().map(|emulator| emulator.device(0));
    let [mut a, mut b] = End::pair(sockets, QpType::Srd);
    b.receive(0, 8928);
    a.write_to(&b, &[1; 20_000]);
    let message = Send::message(&b.qp, &a.region, 64);
    assert_eq!([a.run(&message), b.wait()], [CompStatus::Ok; 2]);
    b.write_to(&a, &[2; 20_000]);
    let read = Send::read(&a.qp, &b.region, &a.region, 20_000);
    assert_eq!(b.run(&read), CompStatus::Ok);
    // Each is three packets of data, and the read one more; each of these has an acknowledgement. On a slow host, some are
    // retransmitted.
    let count = |records: &[Record], kind, direction| {
        let of_kind = records.iter().filter(|record| record.kind() == kind);
        let there = of_kind.filter(|record| record.direction == direction);
        there.count()
    };
    let records = records(&path, |records| {
        let packets = [(1, 6), (2, 4)].into_iter().all(|(direction, data)| {
            count(records, DATA, Some(direction)) >= data && count(records, ACK, Some(direction)) >= 10 - data
        });
        packets && count(records, COMPLETION, None) == 3
    });
    let work = [SEND, RECEIVE, COMPLETION].map(|kind| count(&records, kind, None));
    assert_eq!(work, [2, 1, 3]);
    assert!(records.iter().all(|record| record.device == 0));
    // A part of a message that arrives from another emulator has its payload with it.
    let of = |kind| records.iter().filter(move |record| record.kind() == kind);
    let arrived = of(DATA).next().unwrap();
    assert_eq!(arrived.payload(), [1; 16]);
    // CAST: a small number.
    assert!(arrived.length as usize > arrived.data.len() + 2000);
    let texts = of(EVENT).map(|record| String::from_utf8_lossy(record.payload()));
    let events: String = texts.collect();
    assert!(events.contains("reset end") && events.contains("CREATE_QP("));
    assert!(of(SEND).all(|record| record.payload().len() == 64));
}

#[test]
fn a_snapshot_has_the_data_of_a_report_but_no_payload() {
    let emulator = Emulator::start(2, &[]);
    let [mut a, mut b] = End::pair([0, 1].map(|at| emulator.device(at)), QpType::Srd);
    a.write_to(&b, &b"secret of the guest, over and over. ".repeat(200));
    b.receive(0, 8928);
    b.machine.read(Register::DevSts);
    let snapshot = emulator.ok(&json!({"command": "snapshot"}));
    assert_eq!(snapshot["snapshot"], 2);
    assert_eq!(snapshot["program"], "efa-emu");
    let devices = snapshot["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 2);
    let [sender, receiver] = [0, 1].map(|index| &devices[index]);
    assert_eq!(sender["config"]["profile"], "efa3");
    assert_eq!(sender["attributes"]["max_rdma_size"], 1 << 30);
    assert_eq!(sender["registers"]["DEV_STS"], 0x11);
    assert_ne!(sender["registers"]["AQ_BASE"], 0);
    assert_eq!(sender["counters"]["write_bytes"], 7200);
    assert_eq!(sender["state"]["ready"], true);
    let queues = |device: &Value| {
        let qp = &device["queue_pairs"][0];
        assert_eq!(qp["state"], "RTS");
        assert_eq!(qp["transport"], "SRD");
        let queue = |name: &str| {
            let counters = ["produced", "consumed", "outstanding"];
            counters.map(|counter| qp[name][counter].as_u64().unwrap())
        };
        (queue("send_queue"), queue("receive_queue"))
    };
    assert_eq!(queues(sender), ([1, 1, 0], [0, 0, 0]));
    assert_eq!(queues(receiver), ([0, 0, 0], [1, 0, 0]));
    assert_eq!(sender["completion_queues"][0]["posted"], json!([1]));
    assert_eq!(receiver["memory_regions"][0]["remote_write"], true);
    let trace = sender["trace"].as_array().unwrap();
    let mut trace = trace.iter().map(|line| line.as_str().unwrap());
    assert!(trace.any(|line| line.contains("CREATE_QP(")));
    assert!(!snapshot.to_string().contains("secret"));

    let one = emulator.ok(&json!({"command": "snapshot", "device": 1}));
    let one = one["devices"].as_array().unwrap();
    assert_eq!((one.len(), &one[0]["device"]), (1, &json!(1)));
}
