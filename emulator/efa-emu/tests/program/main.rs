// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The program as its users see it: options, sockets, signals and the control protocol.

mod control;
mod links;
mod options;
mod trace;

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use efa_testing::wait::{patience, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

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
