// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Options, limits, signals and sockets.

use std::{
    fs,
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    process::{Command, Stdio},
};

use rustix::process::Signal;
use serde_json::json;

use super::{Emulator, failure, program, run, socket_in};

/// The program with a limit on descriptors, which the shell sets.
fn limited(limit: &str) -> Command {
    let mut command = Command::new("sh");
    let script = format!("ulimit {limit} && exec \"$@\"");
    command
        .args(["-c", &script, "sh", env!("CARGO_BIN_EXE_efa-emu")])
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null());
    command
}

#[test]
fn signals_end_the_program_and_remove_its_sockets() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut emulator = Emulator::start(&["--fabric", "ideal"]);
        let _guest = UnixStream::connect(emulator.socket("0")).unwrap();
        emulator.signal(signal);
        assert_eq!(emulator.end(), (Some(0), String::new()));
        assert_eq!(fs::read_dir(emulator.folder.path()).unwrap().count(), 0);
    }
}

#[test]
fn the_limit_on_descriptors_is_raised_to_the_hard_limit() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["--device".to_owned(), socket_in(&folder, "0")];
    let emulator = Emulator::start_by(limited("-S -n 128"), folder, options);
    let limits = fs::read_to_string(emulator.proc("limits")).unwrap();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let mut words = files.unwrap().split_whitespace().skip(3);
    let (soft, hard) = (words.next().unwrap(), words.next().unwrap());
    assert_eq!(soft, hard, "{limits}");
}

#[test]
fn threads_wake_up_when_packets_are_due() {
    let emulator = Emulator::start(&[]);
    match fs::read_to_string(emulator.proc("timerslack_ns")) {
        Ok(slack) => assert_eq!(slack, "1\n"),
        // Only a privileged user may read it.
        Err(error) => println!("skipped: {error}"),
    }
}

#[test]
fn devices_that_may_take_too_many_descriptors_are_refused() {
    let instance = ["--instance", "p5.48xlarge,socket=/nowhere/efa"];
    let why = failure(1, limited("-n 512").args(instance));
    assert!(why.contains("32 devices may take"), "{why}");
    assert!(why.contains("may have 512: raise the hard limit"), "{why}");
}

#[test]
fn stale_sockets_are_replaced() {
    let mut emulator = Emulator::start(&[]);
    emulator.signal(Signal::KILL);
    emulator.end();
    assert!(emulator.socket("0").exists());
    let folder = std::mem::replace(&mut emulator.folder, tempfile::tempdir().unwrap());
    let emulator = Emulator::start_in(folder, &[]);
    emulator.control().ok(&json!({"command": "devices"}));
}

#[test]
fn a_socket_in_use_is_left_alone() {
    let emulator = Emulator::start(&[]);
    let path = emulator.socket("control");
    let new = socket_in(&emulator.folder, "new");
    let options = ["--device", &new, "--fabric", "ideal", "--control"];
    let why = format!(
        "cannot listen at {}: another program listens there already; name another path\n",
        path.display()
    );
    let error = failure(1, program().args(options).arg(path));
    assert_eq!(error, format!("efa-emu: {why}"));
    assert!(!emulator.socket("new").exists());
    emulator.control().ok(&json!({"command": "devices"}));
}

#[test]
fn a_scenario_is_applied_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scenario");
    fs::write(
        &path,
        concat!(
            "# The second device is not ready.\n\n",
            "{\"command\":\"set\",\"device\":1,\"set\":{\"ready\":false}}\n",
        ),
    )
    .unwrap();
    let emulator = Emulator::start(&["--scenario", path.to_str().unwrap()]);
    assert_eq!(emulator.control().state(1)["ready"], json!(false));
}

#[test]
fn a_bad_scenario_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let socket = socket_in(&folder, "socket");
    let path = folder.path().join("scenario");
    let run = || {
        let options = ["--device", &socket, "--scenario"];
        failure(1, program().args(options).arg(&path))
    };
    assert!(run().contains("cannot read the scenario"));
    fs::write(&path, "\n{\"command\":\"state\",\"device\":7}\n").unwrap();
    let error = run();
    assert!(
        error.contains("scenario:2: there is no device 7"),
        "{error}"
    );
    assert!(!folder.path().join("socket").exists());
}

#[test]
fn profiles_are_listed() {
    let output = run(program().arg("--list-profiles"));
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    for profile in ["efa0", "efa1", "efa2", "efa3", "efa4"] {
        assert!(text.contains(profile), "{text}");
    }
}

#[test]
fn instances_are_listed() {
    let output = run(program().arg("--list-instances"));
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    let line = "p5.48xlarge       32 x efa1, 100 Gbit/s each, RDMA read and write";
    assert!(text.lines().any(|found| found == line), "{text}");
}

#[test]
fn an_instance_has_its_devices() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("efa").display().to_string();
    let options = ["--instance".into(), format!("p4d.24xlarge,socket={path}")];
    let mut emulator = Emulator::start_with(folder, options);
    let expected: Vec<_> = (0..4)
        .map(
            |index| json!({"device": index, "profile": "efa0", "socket": format!("{path}{index}")}),
        )
        .collect();
    let devices = emulator.control().ok(&json!({"command": "devices"}));
    assert_eq!(devices, json!(expected));
    for index in 0..4 {
        UnixStream::connect(emulator.socket(&format!("efa{index}"))).unwrap();
    }
    emulator.terminate();
    assert_eq!(fs::read_dir(emulator.folder.path()).unwrap().count(), 0);
}

#[test]
fn an_unknown_instance_is_refused() {
    let instance = ["--instance", "p9.metal,socket=/nowhere/efa"];
    let error = failure(2, program().args(instance));
    let known = "no such instance: `p9.metal`, expected one of c5n.18xlarge, ";
    assert!(error.contains(known), "{error}");
}

#[test]
fn a_malformed_message_ends_its_connection_only() {
    let emulator = Emulator::start(&[]);
    let mut guest = UnixStream::connect(emulator.socket("0")).unwrap();
    // A VERSION message whose text does not end in a zero byte.
    let mut message = Vec::new();
    message.extend_from_slice(&[0, 0, 1, 0]);
    message.extend_from_slice(&21_u32.to_le_bytes());
    message.extend_from_slice(&[0; 12]);
    message.push(b'x');
    guest.write_all(&message).unwrap();
    guest.read_to_end(&mut Vec::new()).unwrap();
    emulator.control().state(0);
}

#[test]
fn the_program_is_sandboxed_by_default() {
    // Mode 2 of seccomp is filters, and mode 0 is none.
    let writers = ["--trace=/dev/null", "--capture=/dev/null"];
    for (options, expected) in [(&writers[..], "2"), (&["--sandbox=off"], "0")] {
        let emulator = Emulator::start(options);
        // The emulator answers only after it has entered the sandbox.
        emulator.control().ok(&json!({ "command": "devices" }));
        // These are the main thread, which stays, and the threads that it has started. One of those may end meanwhile.
        let mut confined = 0;
        for task in fs::read_dir(emulator.proc("task")).unwrap() {
            let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else {
                continue;
            };
            confined += 1;
            let mode = status
                .lines()
                .find_map(|line| line.strip_prefix("Seccomp:"));
            assert_eq!(mode.map(str::trim), Some(expected), "{options:?}");
        }
        assert!(confined > 0);
    }
}

#[test]
fn a_file_in_place_of_a_socket_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "precious").unwrap();
    let options = ["--device", &socket_in(&folder, "file")];
    let error = failure(1, program().args(options));
    assert!(error.contains("the path is not a socket"));
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    assert!(UnixListener::bind(&path).is_err());
}
