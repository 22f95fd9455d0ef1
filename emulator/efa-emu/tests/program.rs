// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The program as its users see it: options, sockets, signals and the control protocol.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::TcpStream,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use efa_testing::{
    machine::free_address,
    wait::{patience, wait_for, wait_until},
};
use rustix::{
    fs::{CWD, mkfifoat},
    process::{Pid, Signal, kill_process},
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Options for a device whose socket cannot be created.
const NOWHERE: [&str; 2] = ["--device", "socket=/nowhere/socket"];

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_efa-emu"));
    command.env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    command
}

/// Waits for the end of a program that should end by itself.
fn finish(mut child: Child) -> Output {
    wait_until("end of the program", || child.try_wait().unwrap().is_some());
    child.wait_with_output().unwrap()
}

fn run(command: &mut Command) -> Output {
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(command.spawn().unwrap())
}

/// Runs a program that fails with an exit code. Returns its standard error.
fn failure(code: i32, command: &mut Command) -> String {
    let output = run(command);
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

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

/// The setting of a device for a socket in a folder.
fn socket_in(folder: &TempDir, name: &str) -> String {
    format!("socket={}", folder.path().join(name).display())
}

/// The settings of a device whose number no default device has.
fn seventh(folder: &TempDir) -> String {
    format!("number=7,{}", socket_in(folder, "7"))
}

/// A running emulator with two devices.
struct Emulator {
    child: Option<Child>,
    folder: TempDir,
}

impl Emulator {
    fn start(options: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), options)
    }

    fn start_in(folder: TempDir, options: &[&str]) -> Self {
        let devices = [
            "--device".into(),
            socket_in(&folder, "0"),
            "--device".into(),
            format!("profile=efa0,{}", socket_in(&folder, "1")),
        ];
        let options = options.iter().map(ToString::to_string);
        Self::start_with(folder, devices.into_iter().chain(options))
    }

    /// Starts an emulator with only the [`seventh`] device, which joins another emulator.
    fn joining(folder: TempDir, address: &str) -> Self {
        let device = seventh(&folder);
        let options = ["--join", address, "--device", &device].map(ToOwned::to_owned);
        Self::start_with(folder, options)
    }

    fn start_with(folder: TempDir, options: impl IntoIterator<Item = String>) -> Self {
        Self::start_by(program(), folder, options)
    }

    fn start_by(
        mut command: Command,
        folder: TempDir,
        options: impl IntoIterator<Item = String>,
    ) -> Self {
        command
            .args(options)
            .arg("--control")
            .arg(folder.path().join("control"))
            .stderr(Stdio::piped());
        let mut emulator = Self {
            child: Some(command.spawn().unwrap()),
            folder,
        };
        emulator.wait_until_it_serves();
        emulator
    }

    fn wait_until_it_serves(&mut self) {
        wait_until("control socket that accepts connections", || {
            let child = self.child.as_mut().unwrap();
            assert!(
                child.try_wait().unwrap().is_none(),
                "the program has ended: {}",
                self.end().1
            );
            UnixStream::connect(self.socket("control")).is_ok()
        });
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn control(&self) -> Control {
        Control::connect(&self.socket("control"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.child.as_ref().unwrap()), signal).unwrap();
    }

    /// The path of a file about the process.
    fn proc(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.child.as_ref().unwrap().id())
    }

    /// Waits for the end. Returns exit code and standard error.
    fn end(&mut self) -> (Option<i32>, String) {
        let output = finish(self.child.take().unwrap());
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }

    /// Ends the program, which must succeed.
    fn terminate(&mut self) {
        self.signal(Signal::TERM);
        assert_eq!(self.end().0, Some(0));
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

struct Control(BufReader<UnixStream>);

impl Control {
    fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(patience())).unwrap();
        Self(BufReader::new(stream))
    }

    /// Whether the emulator has closed the connection. No reply may be outstanding.
    fn has_ended(&mut self) -> bool {
        self.0.get_ref().set_nonblocking(true).unwrap();
        self.0.read(&mut [0]).is_ok()
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    fn reply(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn ask(&mut self, request: &Value) -> Value {
        self.send(format!("{request}\n").as_bytes());
        self.reply()
    }

    fn ok(&mut self, request: &Value) -> Value {
        let mut reply = self.ask(request);
        assert!(reply.get("ok").is_some(), "{request}: {reply}");
        reply["ok"].take()
    }

    fn state(&mut self, device: usize) -> Value {
        self.ok(&json!({"command": "state", "device": device}))
    }

    fn error(&mut self, request: &[u8]) -> String {
        self.send(request);
        self.send(b"\n");
        let reply = self.reply();
        reply["error"]
            .as_str()
            .unwrap_or_else(|| panic!("no error: {reply}"))
            .to_owned()
    }

    /// Checks that the reply is an error with this part.
    fn refuses(&mut self, request: impl AsRef<[u8]>, part: &str) {
        let error = self.error(request.as_ref());
        let request = String::from_utf8_lossy(request.as_ref());
        assert!(error.contains(part), "{request}: {error}");
    }
}

/// Returns fields of an object as an array.
fn fields(object: &Value, names: &[&str]) -> Value {
    names.iter().map(|name| object[name].clone()).collect()
}

/// A socket with a scope answers only requests within it.
#[test]
fn control_sockets_have_scopes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("guest");
    let option = format!("{},device=1,read-only", path.display());
    let emulator = Emulator::start_in(folder, &["--control", &option]);
    let mut control = Control::connect(&path);
    assert!(control.ok(&json!({"command": "hello"}))["commands"].is_array());
    let snapshot = control.ok(&json!({"command": "snapshot"}));
    assert_eq!(snapshot["devices"].as_array().unwrap().len(), 1);
    control.state(1);
    for request in [
        r#"{"command":"state","device":0}"#,
        r#"{"command":"state","device":1,"device":0}"#,
        r#"{"command":"die"}"#,
        r#"{"command":"peek","queue":{"rq":1},"length":1}"#,
        r#"{"command":"devices"}"#,
    ] {
        control.refuses(request, "this control socket is");
    }
    // The other socket has no scope.
    emulator.control().ok(&json!({"command": "devices"}));
}

#[test]
fn the_control_socket_answers() {
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    let devices = control.ok(&json!({"command": "devices"}));
    assert_eq!(
        devices,
        json!([
            {"device": 0, "profile": "efa2", "socket": emulator.socket("0")},
            {"device": 1, "profile": "efa0", "socket": emulator.socket("1")},
        ])
    );
    let rule = json!({"when": {"opcode": "ANY"}, "then": {"silence": true}, "times": 1});
    let reply = control.ok(&json!({"command": "inject", "device": 1, "rule": rule}));
    assert!(reply["rule"].is_u64(), "{reply}");
    let set = json!({"command": "set", "device": 1, "set": {"ready": false}});
    assert_eq!(control.ok(&set), json!({}));
    let state = control.state(1);
    assert_eq!(fields(&state, &["faults", "ready"]), json!([1, false]));
    let other = control.ok(&json!({"command": "state"}));
    assert_eq!(fields(&other, &["faults", "ready"]), json!([0, true]));
    control.ok(&json!({"command": "clear", "device": 1}));
    let state = control.state(1);
    assert_eq!(fields(&state, &["faults", "ready"]), json!([0, true]));
    for group in [json!("FATAL_ERROR"), json!(1), json!(999)] {
        control.ok(&json!({"command": "event", "group": group, "syndrome": 1}));
    }
}

#[test]
fn a_client_can_ask_for_versions() {
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    let welcome = control.ok(&json!({"command": "hello"}));
    assert_eq!(welcome["protocol"], json!(1));
    assert_eq!(welcome["program"], json!("efa-emu"));
    assert_eq!(welcome["version"], json!(env!("CARGO_PKG_VERSION")));
    // All listed commands are known.
    for command in welcome["commands"].as_array().unwrap() {
        let reply = control.ask(&json!({ "command": command })).to_string();
        assert!(!reply.contains("unknown variant"), "{reply}");
    }
    assert_eq!(
        control.ok(&json!({"command": "hello", "protocol": 1})),
        welcome
    );
    control.refuses(
        r#"{"command":"hello","protocol":2}"#,
        "version 2 is not supported: this program supports version 1",
    );
}

#[test]
fn a_device_dies() {
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    control.ok(&json!({"command": "die"}));
    let options = json!({"command": "die", "device": 1, "silent": true, "resets": 3, "how": "never_ends", "dma": true});
    control.ok(&options);
    for (device, fatal) in [(0, true), (1, false)] {
        let found = fields(&control.state(device), &["dead", "fatal_error"]);
        assert_eq!(found, json!([true, fatal]));
    }
}

#[test]
fn an_event_is_kept_for_the_next_session() {
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    control.ok(
        &json!({"command": "event", "group": "WARNING", "after_reset": true, "after_commands": 2}),
    );
    let state = control.ok(&json!({"command": "state"}));
    let late = fields(&state, &["late", "events"]);
    assert_eq!(late, json!([1, 0]), "{state}");
}

#[test]
fn events_storm() {
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    let storm = json!({"command": "event", "group": "WARNING", "count": 5_000_000});
    control.ok(&storm);
    // The events wait for a queue, but no client waits for them.
    let state = control.ok(&json!({"command": "state"}));
    assert_eq!(state["storm"], json!(5_000_000));
    control.ok(&json!({"command": "clear"}));
    let state = control.ok(&json!({"command": "state"}));
    assert_eq!(state["storm"], json!(0));
}

#[test]
fn a_device_is_unplugged_and_plugged_in() {
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    let plugged =
        |control: &mut Control| control.ok(&json!({"command": "state"}))["plugged"].take();
    control.ok(&json!({"command": "unplug"}));
    assert_eq!(plugged(&mut control), json!(false));
    control.refuses(r#"{"command":"die"}"#, "plug it in first");
    control.ok(&json!({"command": "plug"}));
    assert_eq!(plugged(&mut control), json!(true));
}

#[test]
fn bad_requests_are_answered_by_an_error() {
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    for (request, part) in [
        (&b"{"[..], "EOF"),
        (b"", "EOF"),
        (b"\xff\xfe", ""),
        (b"[]", ""),
        (
            br#"{"command":"stat"}"#,
            "unknown variant `stat`, expected one of `hello`, `devices`, `state`",
        ),
        (br#"{"command":"devices","device":0}"#, "unknown field"),
        (
            br#"{"command":"state","device":2}"#,
            "there is no device 2; the last one is 1",
        ),
        (br#"{"command":"state","device":-1}"#, "invalid value"),
        (
            br#"{"command":"set","set":{"max_eqq":1}}"#,
            "unknown field `max_eqq`",
        ),
        (
            br#"{"command":"inject","rule":{"when":{},"then":{}}}"#,
            "`when` needs",
        ),
        (
            br#"{"command":"event","group":"FATAL"}"#,
            "no event group \"FATAL\", only FATAL_ERROR",
        ),
        (
            br#"{"command":"event","group":1,"count":1,"after_reset":true}"#,
            "but not both",
        ),
        (br#"{"command":"event","group":1,"count":0}"#, "nonzero"),
        (
            br#"{"command":"notify","cq":1,"count":2}"#,
            "there is no completion queue 1",
        ),
        (
            br#"{"command":"event","group":1,"after_commands":1}"#,
            "`after_commands` needs `after_reset`",
        ),
        (br#"{"command":"die","resets":0}"#, "nonzero"),
        (
            br#"{"command":"die","how":"loudly"}"#,
            "`loudly`, expected `never_starts` or `never_ends`",
        ),
        (
            br#"{"command":"event","group":65536}"#,
            "no event group 65536",
        ),
    ] {
        control.refuses(request, part);
    }
    let endless = vec![b'{'; 1 << 20];
    assert_eq!(control.error(&endless), "a request is at most 65536 bytes");
    control.ok(&json!({"command": "devices"}));
}

#[test]
fn requests_sent_at_once_are_answered_in_order() {
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    let mut requests = Vec::new();
    for device in 0..100 {
        let request = json!({"command": "state", "device": device});
        writeln!(requests, "{request}").unwrap();
    }
    control.send(&requests);
    for device in 0..100 {
        let reply = control.reply();
        match device {
            0 | 1 => assert!(reply.get("ok").is_some()),
            _ => {
                let error = reply["error"].as_str().unwrap();
                assert!(error.contains(&format!("no device {device};")));
            }
        }
    }
}

#[test]
fn many_connections_are_served_at_once() {
    // The limit is 64. The connection that has tested whether the emulator serves may still be open.
    let emulator = Emulator::start(&[]);
    let mut idle: Vec<_> = (0..32).map(|_| emulator.control()).collect();
    thread::scope(|scope| {
        for _ in 0..24 {
            scope.spawn(|| {
                let mut control = emulator.control();
                for _ in 0..50 {
                    control.state(1);
                }
            });
        }
    });
    for control in &mut idle {
        control.ok(&json!({"command": "devices"}));
    }
}

#[test]
fn silent_clients_do_not_block_others() {
    let emulator = Emulator::start(&[]);
    let devices = json!({"command": "devices"});
    // The maximum number of connections.
    let mut old: Vec<_> = (0..64).map(|_| emulator.control()).collect();
    for control in [63, 0, 1] {
        old[control].ok(&devices);
    }
    let mut new = Vec::new();
    for _ in 0..60 {
        let mut control = emulator.control();
        control.ok(&devices);
        new.push(control);
    }
    // Clients that have sent a request stay connected.
    for control in new.iter_mut().chain(&mut old[..2]) {
        control.ok(&devices);
    }
    let ended = old.iter_mut().map(Control::has_ended);
    let ended = ended.filter(|ended| *ended).count();
    assert!((60..62).contains(&ended), "{ended}");
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
fn ctl_prints_replies() {
    let emulator = Emulator::start(&[]);
    let ctl = |requests: &[&str]| {
        run(program()
            .arg("ctl")
            .arg(emulator.socket("control"))
            .args(requests))
    };
    let output = ctl(&["{\"command\":\"devices\"}", "{\"command\":\n\"clear\"}"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 2);
    let output = ctl(&["{}"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.starts_with(b"{\"error\":"));
    let error = failure(1, program().args(["ctl", "/nowhere", "{}"]));
    assert!(
        error.contains("cannot use the control socket /nowhere (No such file")
            && error.contains("--control"),
        "{error}"
    );
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

/// Waits until a file has so many lines, and returns its text.
fn read_when_there(path: &Path, lines: usize) -> String {
    wait_for("file with enough lines", || {
        let text = fs::read_to_string(path).unwrap();
        match text.lines().count() >= lines {
            true => Ok(text),
            false => Err(text),
        }
    })
}

/// Makes a device post events, each of which is a line of the trace.
fn post_events(control: &mut Control, count: usize) {
    let event = json!({"command": "event", "device": 1, "group": "WARNING"});
    let requests = format!("{event}\n").repeat(count);
    thread::scope(|scope| {
        let mut writer = control.0.get_ref().try_clone().unwrap();
        scope.spawn(move || writer.write_all(requests.as_bytes()).unwrap());
        for _ in 0..count {
            control.reply();
        }
    });
}

/// Returns the number of lines of a trace, and the number of lines that it reports as lost.
fn counted(text: &str) -> (usize, usize) {
    let mut counts = (0, 0);
    for line in text.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        assert!(words[0].parse::<f64>().is_ok() && words[1] == "1", "{line}");
        match words[2] {
            "lost" => counts.1 += words[3].trim_end_matches(',').parse::<usize>().unwrap(),
            "aenq" => counts.0 += 1,
            _ => panic!("{line}"),
        }
    }
    counts
}

/// Starts a reader of a pipe, and returns its lines.
fn read_pipe(pipe: PathBuf) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let pipe = BufReader::new(File::open(pipe).unwrap());
        for line in pipe.lines() {
            let _ = sender.send(line.unwrap());
        }
    });
    lines
}

#[test]
fn an_unread_trace_does_not_block_devices() {
    const EVENTS: usize = 20_000;

    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    mkfifoat(CWD, &pipe, 0o600.into()).unwrap();
    let options = vec![
        "--instance".into(),
        // With so many devices, the buffer's share of each is small. Their descriptors are within a hard limit of 4096.
        format!("p5.48xlarge,msix=1,{}", socket_in(&folder, "efa")),
        "--trace".into(),
        pipe.to_str().unwrap().into(),
    ];
    let mut emulator = Emulator::start_with(folder, options);
    post_events(&mut emulator.control(), EVENTS);

    // A reader gets the lines in the pipe and in the emulator, and the number of lost lines.
    let reader = read_pipe(pipe);
    let (mut lines, mut lost) = (0, 0);
    while lines + lost < EVENTS {
        let (line, missing) = counted(&reader.recv_timeout(patience()).unwrap());
        lines += line;
        lost += missing;
    }
    emulator.terminate();
    assert_eq!(reader.iter().next(), None);
    assert_eq!(lines + lost, EVENTS);
    assert!(
        (1000..10_000).contains(&lines),
        "{lines} lines, {lost} lost"
    );
}

#[test]
fn the_end_does_not_wait_for_readers_of_the_trace() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    mkfifoat(CWD, &pipe, 0o600.into()).unwrap();
    let mut emulator = Emulator::start(&["--trace", pipe.to_str().unwrap()]);
    post_events(&mut emulator.control(), 10_000);
    emulator.terminate();
}

#[test]
fn the_trace_is_whole_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let mut emulator = Emulator::start(&["--trace", path.to_str().unwrap()]);
    post_events(&mut emulator.control(), 20_000);
    emulator.terminate();
    assert_eq!(counted(&fs::read_to_string(&path).unwrap()), (20_000, 0));
}

#[test]
fn the_trace_has_a_filter() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let trace = path.to_str().unwrap();
    for (filter, expected) in [
        ("events", 1),
        ("1:admin,events", 1),
        ("0:events", 0),
        ("admin", 0),
    ] {
        let mut emulator = Emulator::start(&["--trace", trace, "--trace-filter", filter]);
        post_events(&mut emulator.control(), 1);
        emulator.terminate();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(counted(&text), (expected, 0), "{filter}: {text}");
    }

    for (options, part) in [
        (
            &["--trace", trace, "--trace-filter", "x"][..],
            "no such kind: `x`",
        ),
        (&["--trace-filter", "all"], "--trace <FILE>"),
    ] {
        let error = failure(2, program().args(NOWHERE).args(options));
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn the_trace_is_written_to_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let emulator = Emulator::start(&["--trace", path.to_str().unwrap()]);
    emulator
        .control()
        .ok(&json!({"command": "event", "device": 1, "group": "WARNING"}));
    let text = read_when_there(&path, 1);
    let words: Vec<_> = text.split_whitespace().collect();
    assert!(words[0].parse::<f64>().unwrap() < 60.0, "{text}");
    assert_eq!(words[1], "1", "{text}");
    assert!(text.ends_with('\n'), "{text}");

    let trace = ["--trace", "/nowhere/trace"];
    let error = failure(1, program().args(NOWHERE).args(trace));
    assert!(error.contains("cannot write the trace /nowhere/trace"));
}

#[test]
fn errors_name_queues_that_do_not_exist() {
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    for (request, expected) in [
        (
            json!({"command": "peek", "queue": {"cq": 1}, "length": 8}),
            "there is no completion queue 1",
        ),
        (
            json!({"command": "peek", "queue": {"cq": 1}, "length": 4097}),
            "at most 4096 bytes",
        ),
        (
            json!({"command": "poke", "queue": {"rq": 2}, "offset": 8, "data": [1, 255]}),
            "there is no receive queue of a queue pair 2",
        ),
        (
            json!({"command": "poke", "queue": {"rq": 2}, "data": [256]}),
            "256",
        ),
        (
            json!({"command": "poke", "queue": {"sq": 2}, "data": []}),
            "unknown variant `sq`",
        ),
        (
            json!({"command": "notify", "cq": 3}),
            "there is no completion queue 3",
        ),
        (
            json!({"command": "notify", "eq": 4, "cq": 3, "device": 1}),
            "there is no event queue 4",
        ),
    ] {
        control.refuses(request.to_string(), expected);
    }
}

#[test]
fn clients_can_request_the_trace() {
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    let event = json!({"command": "event", "device": 1, "group": "WARNING"});
    let trace = |device| json!({"command": "trace", "device": device});
    let nothing = json!({"lines": [], "wire": [], "lost": 0});

    // No line is kept before the first request, returned twice, or returned for another device.
    control.ok(&event);
    assert_eq!(control.ok(&trace(1)), nothing);
    control.ok(&event);
    assert_eq!(control.ok(&trace(0)), nothing);
    let recent = control.ok(&trace(1));
    let line = recent["lines"][0].as_str().unwrap();
    assert!(line.starts_with("aenq WARNING"), "{recent}");
    assert_eq!(control.ok(&trace(1)), nothing);
    control.refuses(trace(2).to_string(), "no device 2");

    // The newest lines are kept.
    post_events(&mut control, 16384 + 10);
    let recent = control.ok(&trace(1));
    assert_eq!(recent["lines"].as_array().unwrap().len(), 16384);
    assert_eq!(recent["lost"], json!(10));
}

#[test]
fn clients_can_read_and_change_the_network() {
    let emulator = Emulator::start(&["--fabric", "loss=0.25,paths=2"]);
    let mut control = emulator.control();
    let reply = control.ok(&json!({ "command": "fabric" }));
    assert_eq!(reply["settings"]["loss"], json!(0.25));
    assert_eq!(reply["paths"].as_array().unwrap().len(), 2);
    let reply = control.ok(&json!({ "command": "fabric", "set": { "jitter_us": 5, "paths": 3 } }));
    assert_eq!(reply["settings"]["loss"], json!(0.25));
    assert_eq!(reply["settings"]["jitter_us"], json!(5.0));
    assert_eq!(reply["paths"].as_array().unwrap().len(), 3);
    for (set, part) in [
        (json!({ "loss": 1.5 }), "loss must be between 0 and 1"),
        (json!({ "lost": 1 }), "unknown field `lost`"),
    ] {
        let request = json!({ "command": "fabric", "set": set });
        control.refuses(request.to_string(), part);
    }
    let options = ["--device", "socket=a", "--fabric", "paths=0"];
    let error = failure(2, program().args(options));
    assert!(error.contains("paths is 0"), "{error}");
}

#[test]
fn the_program_is_sandboxed_by_default() {
    // Mode 2 of seccomp is filters, and mode 0 is none.
    let default = if cfg!(sanitized) { "0" } else { "2" };
    let writers = ["--trace=/dev/null", "--capture=/dev/null"];
    for (options, expected) in [(&writers[..], default), (&["--sandbox=off"], "0")] {
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
fn an_emulator_is_joined_by_name() {
    let address = free_address().to_string();
    let port = address.rsplit_once(':').unwrap().1;
    let folder = tempfile::tempdir().unwrap();
    let joining = Emulator::joining(folder, &format!("localhost:{port}"));
    // The emulator joins when the other one starts to listen, and again after that has restarted.
    for _ in 0..2 {
        let first = Emulator::start(&["--listen", &address]);
        wait_for_devices(&first, 1);
    }
    let socket = socket_in(&joining.folder, "8");
    let options = ["--device", &socket, "--join", "localhost"];
    let error = failure(1, program().args(options));
    assert!(error.contains("cannot join localhost: "));
}

/// Waits until there are so many devices of other emulators.
fn wait_for_devices(emulator: &Emulator, expected: u64) {
    wait_for("other emulator", || {
        let reply = emulator.control().ok(&json!({ "command": "fabric" }));
        match reply["remote_devices"] == json!(expected) {
            true => Ok(()),
            false => Err(reply),
        }
    });
}

#[test]
fn emulators_join_and_leave() {
    let address = free_address().to_string();
    let first = Emulator::start(&["--listen", &address]);
    let folder = tempfile::tempdir().unwrap();
    let third = seventh(&folder);
    // Its first two devices have the numbers of the first emulator's.
    let mut second = Emulator::start(&["--join", &address, "--device", &third, "-v"]);
    let log = second.child.as_mut().unwrap().stderr.take().unwrap();
    let refused = BufReader::new(log)
        .lines()
        .map_while(Result::ok)
        .find(|line| line.contains("give each device its own number"));
    assert!(refused.is_some());
    wait_for_devices(&first, 0);
    second.signal(Signal::TERM);
    second.end();

    let mut other = Emulator::joining(folder, &address);
    wait_for_devices(&first, 1);
    wait_for_devices(&other, 2);
    other.signal(Signal::TERM);
    other.end();
    wait_for_devices(&first, 0);
}

#[test]
fn connections_without_a_greeting_do_not_block_emulators() {
    let address = free_address().to_string();
    let first = Emulator::start(&["--listen", &address]);
    let folder = tempfile::tempdir().unwrap();
    let _joined = Emulator::joining(folder, &address);
    wait_for_devices(&first, 1);
    let mut silent = Vec::new();
    wait_for("greeting while other connections are silent", || {
        // The maximum number of connections, again and again.
        silent.extend((0..64).map(|_| TcpStream::connect(&address).unwrap()));
        let mut stream = TcpStream::connect(&address)?;
        stream.set_read_timeout(Some(patience()))?;
        stream.read_exact(&mut [0; 4])
    });
    // An emulator that has joined keeps its place.
    let reply = first.control().ok(&json!({ "command": "fabric" }));
    assert_eq!(reply["remote_devices"], json!(1));
}

#[test]
fn connections_without_a_greeting_are_closed() {
    let address = free_address().to_string();
    let _emulator = Emulator::start(&["--listen", &address]);
    let mut stream = TcpStream::connect(&address).unwrap();
    let pause = Duration::from_millis(200);
    stream.set_read_timeout(Some(pause)).unwrap();
    stream.write_all(&10_000_u32.to_le_bytes()).unwrap();
    wait_until("end of the link", || {
        // The client never stops sending.
        stream.write_all(&[0]).is_err()
            || match stream.read(&mut [0; 1000]) {
                Ok(count) => count == 0,
                Err(error) => error.kind() != ErrorKind::WouldBlock,
            }
    });
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

#[test]
fn the_guide_matches_the_program() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Documentation");
    let guide = ["emulator.md", "emulator-control.md"]
        .map(|name| fs::read_to_string(folder.join(name)).unwrap())
        .concat();
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    let requests = guide
        .lines()
        .filter(|line| line.starts_with("{\"command\":"));
    let answered = requests
        .map(|request| control.ok(&serde_json::from_str(request).unwrap()))
        .count();
    assert!(answered >= 8, "only {answered} requests in the guide");

    // The message lists all attributes, none of which may be missing in the guide.
    let error = control.error(b"{\"command\":\"set\",\"set\":{\"\":0}}");
    let attributes: Vec<_> = error.split('`').skip(3).step_by(2).collect();
    assert!(attributes.len() > 40, "{error}");
    for attribute in attributes {
        assert!(
            guide.contains(&format!("`{attribute}`")),
            "{attribute} is not in the guide"
        );
    }
}
