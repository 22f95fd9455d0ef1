// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What machines did is recorded, and done again without them.

use std::{fs, path::Path, process::Command};

use efa_hw::{admin::qp::QpType, io::CompStatus, regs::Register};
use efa_machine::{Emulator, End, Send, pattern};
use efa_testing::wait::wait_for;
use serde_json::json;

/// Two machines that send, write and read, and do it wrong, too.
fn exchange(emulator: &Emulator) {
    let [mut a, mut b] = [0, 1].map(|device| End::new(&emulator.device(device), QpType::Srd));
    End::introduce(&mut a, &mut b);
    for length in [1, 64, 8928] {
        b.qp.receive(&mut b.machine, &b.region, 0, 8928);
        b.machine.read(Register::DevSts);
        a.region
            .fill(&a.machine, &pattern(length as usize, length.into()));
        assert_eq!(
            a.run(&Send::message(&b.qp, &a.region, length)),
            CompStatus::Ok
        );
        assert_eq!(b.qp.wait(&b.machine), CompStatus::Ok);
    }
    a.write_to(&b, &pattern(300_000, 1));
    b.write_to(&a, &pattern(5000, 2));
    let mut read = Send::read(&b.qp, &a.region, &b.region, 100_000);
    assert_eq!(a.run(&read), CompStatus::Ok);
    // There is no such memory.
    read.remote = Some((0, 0x12345));
    assert_eq!(a.run(&read), CompStatus::RemoteBadAddress);
    let rule =
        json!({"when": {"work": "RDMA_WRITE"}, "then": {"status": "REMOTE_ERROR_BAD_STATUS"}});
    let reply = emulator.ask(&json!({"command": "inject", "rule": rule}));
    assert!(reply.get("ok").is_some(), "{reply}");
    a.machine.reset();
}

/// What `efa-emu replay` does: whether it finds the same, and what it says.
fn replay(path: &Path, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_efa-emu"))
        .arg("replay")
        .arg(path)
        .args(arguments)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

/// How many events of a device were the same.
fn same(said: &str, device: usize) -> Option<usize> {
    let start = format!("device {device}: all ");
    let same = said.lines().find_map(|line| {
        line.strip_prefix(&start)?
            .strip_suffix(" events are the same")
    });
    Some(same?.parse().unwrap())
}

#[test]
fn what_machines_did_is_done_again() {
    let folder = tempfile::tempdir().unwrap();
    for fabric in ["ideal", "realistic,loss=0.02"] {
        let path = folder.path().join(fabric);
        let record = ["--fabric", fabric, "--record", path.to_str().unwrap()];
        let emulator = Emulator::start(2, &record);
        exchange(&emulator);
        emulator.stop();
        let (ok, said) = replay(&path, &[]);
        assert!(ok, "{said}");
        for device in [0, 1] {
            assert!(same(&said, device) > Some(300), "{said}");
        }
        assert_eq!(said.lines().count(), 2, "{said}");
        let (_, said) = replay(&path, &["--device", "1", "--trace"]);
        assert!(said.contains("\n1 aq ") && !said.contains("\n0 "), "{said}");
    }
}

#[test]
fn what_was_not_so_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let emulator = Emulator::start(2, &["--record", path.to_str().unwrap()]);
    exchange(&emulator);
    emulator.stop();
    let good = fs::read(&path).unwrap();

    // A line of the trace, with another number.
    let text = b"CREATE_QP(SRD";
    let at = good.windows(text.len()).position(|part| part == text);
    let mut bad = good.clone();
    bad[at.unwrap()] = b'K';
    fs::write(&path, &bad).unwrap();
    let (ok, said) = replay(&path, &[]);
    assert!(!ok && said.contains("device 0 differs: event "), "{said}");
    assert!(
        said.contains("tells: aq ") && said.contains(" KREATE_QP("),
        "{said}"
    );

    // Another device than that which was recorded: as if the program had been changed.
    let text = br#""profile":"efa3""#;
    let at = good.windows(text.len()).position(|part| part == text);
    let mut bad = good.clone();
    bad[at.unwrap() + text.len() - 2] = b'2';
    fs::write(&path, &bad).unwrap();
    let (ok, said) = replay(&path, &[]);
    assert!(!ok && said.contains("device 0 differs: event "), "{said}");
    assert!(
        said.contains("write of ") && said.contains(", of which byte "),
        "{said}"
    );

    fs::write(&path, b"something else").unwrap();
    let (ok, said) = replay(&path, &[]);
    assert!(
        !ok && said.ends_with("it is no recording of efa-emu\n"),
        "{said}"
    );
}

#[test]
fn a_program_that_was_killed_leaves_a_recording() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let emulator = Emulator::start(2, &["--record", path.to_str().unwrap()]);
    exchange(&emulator);
    wait_for("recording", || {
        let (_, said) = replay(&path, &[]);
        match same(&said, 0) > Some(300) {
            true => Ok(()),
            false => Err(said),
        }
    });
    emulator.kill();
    let (ok, said) = replay(&path, &[]);
    assert!(ok && same(&said, 0) > Some(300), "{said}");
    assert!(
        said.contains("in the middle: the program was killed"),
        "{said}"
    );
}
