// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The emulator, as a process.

use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::Control;
use crate::wait::{patience, wait_for, wait_until};

/// Returns a TCP address of this host without a listener.
///
/// Its port is below the kernel's range of ephemeral ports, so no connection gets it meanwhile.
pub fn free_address() -> SocketAddr {
    loop {
        let address = (Ipv4Addr::LOCALHOST, fastrand::u16(10_000..32_768)).into();
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// A thread of a process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Thread {
    /// Its name, of which the kernel keeps 15 bytes.
    pub name: String,
    path: PathBuf,
}

/// Returns the threads in a folder `/proc/NUMBER/task`, and the time for which each has run or waited for a processor.
pub fn runnable(task: &Path) -> Vec<(Thread, Duration)> {
    let threads = fs::read_dir(task).unwrap();
    let time_of = |path: PathBuf| {
        // A thread may have ended.
        let name = fs::read_to_string(path.join("comm")).ok()?;
        let times = fs::read_to_string(path.join("schedstat")).ok()?;
        let times = times.split(' ').take(2).map(|time| time.parse::<u64>());
        let time = Duration::from_nanos(times.map(Result::unwrap).sum());
        let name = name.trim_end().to_owned();
        Some((Thread { name, path }, time))
    };
    threads.filter_map(|entry| time_of(entry.ok()?.path())).collect()
}

/// An emulator with some devices, which is killed on drop.
#[derive(Debug)]
pub struct Emulator {
    folder: TempDir,
    child: Child,
    address: Option<SocketAddr>,
}

impl Emulator {
    /// Starts an emulator of `devices` devices.
    pub fn start(devices: usize, arguments: &[&str]) -> Self {
        Self::run(program(), devices, 0, arguments)
    }

    /// Starts an emulator by a command, whose devices have numbers from `first` on.
    pub fn run(mut command: Command, devices: usize, first: usize, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for device in 0..devices {
            let socket = folder.path().join(format!("efa{device}"));
            let spec = format!("number={},profile=efa3,socket={}", first + device, socket.display());
            command.args(["--device", &spec]);
        }
        command.args(arguments);
        if !arguments.contains(&"--fabric") {
            command.args(["--fabric", "ideal"]);
        }
        Self::launch(command, folder)
    }

    /// Starts an emulator by a command, with its control socket in a folder.
    pub fn launch(mut command: Command, folder: TempDir) -> Self {
        let control = folder.path().join("control");
        command.arg("--control").arg(&control);
        let mut emulator = Self { folder, child: command.spawn().unwrap(), address: None };
        wait_for("emulator", || {
            let end = emulator.child.try_wait().unwrap();
            assert!(end.is_none(), "the program has ended: {end:?}");
            UnixStream::connect(&control)
        });
        emulator
    }

    /// Starts an emulator that others may join at an address.
    pub fn listening(devices: usize, first: usize, address: SocketAddr, more: &[&str]) -> Self {
        let listen = ["--listen", &address.to_string()];
        let arguments = [&listen, more].concat();
        let mut emulator = Self::run(program(), devices, first, &arguments);
        emulator.address = Some(address);
        emulator
    }

    /// Starts an emulator that joins another one.
    pub fn joining(devices: usize, first: usize, other: &Self, more: &[&str]) -> Self {
        let join = ["--join", &other.address().to_string()];
        Self::run(program(), devices, first, &[&join, more].concat())
    }

    /// Starts two joined emulators of one device each; the second has more arguments. They tolerate each other's silence for
    /// our [patience].
    pub fn pair(more: &[&str]) -> [Self; 2] {
        let silence = format!("ideal,silence_s={}", patience().as_secs());
        let patient = ["--fabric", &silence];
        let first = Self::listening(1, 1, free_address(), &patient);
        let second = Self::joining(1, 2, &first, &[&patient, more].concat());
        first.wait_for_peers(1);
        second.wait_for_peers(1);
        [first, second]
    }

    /// Returns the address at which it listens for other emulators.
    pub fn address(&self) -> SocketAddr {
        self.address.unwrap()
    }

    /// Returns the path of a device's socket.
    pub fn device(&self, device: usize) -> PathBuf {
        self.folder.path().join(format!("efa{device}"))
    }

    /// Returns the folder of its sockets.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the path of the control socket.
    pub fn control(&self) -> PathBuf {
        self.folder.path().join("control")
    }

    /// Connects to the control socket.
    pub fn connect(&self) -> Control {
        Control::connect(&self.control())
    }

    /// Sends a request to the control socket; returns the reply.
    pub fn ask(&self, request: &Value) -> Value {
        self.connect().ask(request)
    }

    /// Sends a request that succeeds to the control socket; returns the result.
    pub fn ok(&self, request: &Value) -> Value {
        self.connect().ok(request)
    }

    /// Waits until it has `devices` devices of other emulators.
    pub fn wait_for_peers(&self, devices: u64) {
        wait_until("other emulators with the expected number of devices", || {
            let reply = self.ask(&json!({"command": "fabric"}));
            reply["ok"]["remote_devices"] == devices
        });
    }

    /// Returns a file about the process.
    pub fn proc(&self, name: &str) -> PathBuf {
        format!("/proc/{}/{name}", self.child.id()).into()
    }

    /// Ends the process by a signal, and waits for that. Returns the exit code.
    pub fn end(&mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let end = || self.child.try_wait().unwrap().ok_or(());
        wait_for("end of the program", end).code()
    }

    /// Returns the memory of the process in bytes, without memory that is shared with machines.
    pub fn memory(&self) -> u64 {
        let status = fs::read_to_string(self.proc("status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kib << 10
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a command that runs the emulator's program.
pub fn program() -> Command {
    prepared(Command::new(path()))
}

/// As [`program`], with a limit that the shell sets by these options of `ulimit`.
pub fn limited(limit: &str) -> Command {
    let mut command = Command::new("sh");
    let script = format!("ulimit {limit} && exec \"$@\"");
    command.args(["-c", &script, "sh"]).arg(path());
    prepared(command)
}

fn prepared(mut command: Command) -> Command {
    command.env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    command
}

/// Returns the path of the emulator's program: `EFA_EMU`, or this workspace's build beside the test or example that runs.
fn path() -> PathBuf {
    if let Some(path) = env::var_os("EFA_EMU") {
        return path.into();
    }
    let own = env::current_exe().unwrap();
    let path = own.ancestors().nth(2).unwrap().join("efa-emu");
    assert!(path.exists(), "build efa-emu first: {} is missing", path.display());
    path
}
