// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Options, limits, signals and sockets.

use super::*;

#[test]
fn signals_end_the_program_and_remove_its_sockets() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut log = tempfile::tempfile().unwrap();
        let mut command = program();
        command.stderr(log.try_clone().unwrap());
        let mut emulator = Emulator::run(command, 1, 0, &[]);
        let _guest = UnixStream::connect(emulator.device(0)).unwrap();
        assert_eq!(emulator.end(signal), Some(0));
        let mut text = String::new();
        log.rewind().unwrap();
        log.read_to_string(&mut text).unwrap();
        assert_eq!(text, "");
        assert_eq!(fs::read_dir(emulator.folder()).unwrap().count(), 0);
    }
}

#[test]
fn the_limit_on_descriptors_is_raised_to_the_hard_limit() {
    let emulator = Emulator::run(limited("-S -n 128"), 1, 0, &[]);
    let limits = fs::read_to_string(emulator.proc("limits")).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files"));
    let mut words = files.unwrap().split_whitespace().skip(3);
    let (soft, hard) = (words.next().unwrap(), words.next().unwrap());
    assert_eq!(soft, hard, "{limits}");
}

#[test]
fn threads_wake_up_when_packets_are_due() {
    let emulator = Emulator::start(1, &[]);
    match fs::read_to_string(emulator.proc("timerslack_ns")) {
        Ok(slack) => assert_eq!(slack, "1\n"),
        // Only a privileged user may read it.
        Err(error) => println!("skipped: {error}"),
    }
}

/// Exit codes, options, and a part of the message. OWN is a folder, and USED a socket of another emulator.
const FAILURES: &str = "
1 --device socket=OWN/new --control USED | efa-emu: cannot listen at USED: another program listens there already; name another path
1 --device socket=OWN/new --scenario OWN/none | cannot read the scenario
1 --device socket=OWN/new --scenario OWN/scenario | scenario:2: there is no device 7
1 --device socket=OWN/new --join localhost | cannot join localhost:
1 --device socket=OWN/new --trace /no/trace | cannot write the trace /no/trace: No such file
1 --device socket=OWN/new --capture /no/capture | cannot write the capture /no/capture: No such file
2 --device socket=OWN/new --fabric paths=0 | paths is 0
2 --instance OWN/lab.toml:lab,socket=OWN/new | OWN/lab.toml:2: unknown variant `efa9`
1 --instance p5.48xlarge,socket=OWN/new | 32 devices may take
1 ctl /nowhere {} | cannot use the control socket /nowhere (No such file or directory (os error 2)): name a --control socket
";

#[test]
fn failures_name_their_cause() {
    let own = tempfile::tempdir().unwrap();
    let emulator = Emulator::start(1, &[]);
    let write = |name, text| fs::write(own.path().join(name), text).unwrap();
    write("scenario", "\n{\"command\":\"state\",\"device\":7}\n");
    write("lab.toml", "[instance]\nlab = { devices = 1, profile = 'efa9' }\n");
    let failures =
        FAILURES.replace("OWN", own.path().to_str().unwrap()).replace("USED", emulator.control().to_str().unwrap());
    for line in failures.trim().lines() {
        let (code, rest) = line.split_once(' ').unwrap();
        let (options, part) = rest.split_once(" | ").unwrap();
        // With so few descriptors, 32 devices may take too many.
        let output = run(limited("-n 512").args(options.split(' ')));
        assert_eq!(output.status.code(), code.parse().ok(), "{output:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(part), "{line}: {error}");
        assert!(!own.path().join("new").exists(), "{line}");
    }
    emulator.ok(&json!({"command": "devices"}));
}

#[test]
fn profiles_and_instances_are_listed() {
    for (option, line) in [
        ("--list-profiles", "efa1  1d0f:efa1  adds RDMA read and event queues"),
        ("--list-instances", "p5.48xlarge       32 x efa1, 100 Gbit/s each, RDMA read and write"),
    ] {
        let output = run(program().arg(option));
        assert_eq!(output.status.code(), Some(0));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.lines().any(|found| found == line), "{text}");
    }
}

#[test]
fn an_instance_has_its_devices() {
    let own = tempfile::tempdir().unwrap();
    let file = own.path().join("lab.toml");
    let text = "[instance]\nlab = { devices = 2, profile = 'efa3', link_gbps = 25, rdma = 'none' }\n";
    fs::write(&file, text).unwrap();
    for (name, devices, profile, gbps) in
        [("p4d.24xlarge", 4, "efa0", 100), (&format!("{}:lab", file.display()), 2, "efa3", 25)]
    {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("efa").display().to_string();
        let mut command = program();
        command.args(["--instance", &format!("{name},socket={path}")]);
        let mut emulator = Emulator::launch(command, folder);
        let expected = |index| json!({"device": index, "profile": profile, "socket": format!("{path}{index}")});
        let expected: Vec<_> = (0..devices).map(expected).collect();
        assert_eq!(emulator.ok(&json!({"command": "devices"})), json!(expected));
        for index in 0..devices {
            UnixStream::connect(emulator.device(index)).unwrap();
            let snapshot = emulator.ok(&json!({"command": "snapshot", "device": index}));
            assert_eq!(snapshot["devices"][0]["attributes"]["link_gbps"], gbps);
        }
        assert_eq!(emulator.end(Signal::TERM), Some(0));
        assert_eq!(fs::read_dir(emulator.folder()).unwrap().count(), 0);
    }
}

#[test]
fn the_program_is_sandboxed_by_default() {
    // Mode 2 of seccomp is filters, and mode 0 is none.
    let writers = ["--trace=/dev/null", "--capture=/dev/null"];
    for (options, expected) in [(&writers[..], "2"), (&["--sandbox=off"], "0")] {
        let emulator = Emulator::start(2, options);
        // The emulator answers only after it has entered the sandbox.
        emulator.ok(&json!({ "command": "devices" }));
        // These are the main thread, which stays, and the threads that it has started. One of those may end meanwhile.
        let mut confined = 0;
        for task in fs::read_dir(emulator.proc("task")).unwrap() {
            let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else {
                continue;
            };
            confined += 1;
            let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
            assert_eq!(mode.map(str::trim), Some(expected), "{options:?}");
        }
        assert!(confined > 0);
    }
}
