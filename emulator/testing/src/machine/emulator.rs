// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! An emulator as a process.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use crate::wait::{patience, wait_for, wait_until};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A TCP address of this host that nobody listens at.
///
/// The kernel gives its port to no connection, as it may do with one that it has chosen itself.
pub fn free_address() -> SocketAddr {
    loop {
        let address = (Ipv4Addr::LOCALHOST, fastrand::u16(10_000..32_768)).into();
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// An emulator with some devices, which ends when this is dropped.
#[derive(Debug)]
pub struct Emulator {
    folder: TempDir,
    child: Child,
    address: Option<SocketAddr>,
}

impl Emulator {
    /// An emulator of so many devices.
    pub fn start(devices: usize, arguments: &[&str]) -> Self {
        Self::numbered(devices, 0, arguments)
    }

    /// One that may have no more than so many descriptors.
    pub fn with_descriptors(most: usize, devices: usize, arguments: &[&str]) -> Self {
        let mut command = Command::new("sh");
        let script = format!("ulimit -n {most} && exec \"$@\"");
        command.args(["-c", &script, "sh"]).arg(program());
        Self::run(command, devices, 0, arguments)
    }

    fn numbered(devices: usize, first: usize, arguments: &[&str]) -> Self {
        Self::run(Command::new(program()), devices, first, arguments)
    }

    fn run(mut command: Command, devices: usize, first: usize, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for device in 0..devices {
            let socket = folder.path().join(format!("efa{device}"));
            let spec = format!(
                "number={},profile=efa3,socket={}",
                first + device,
                socket.display()
            );
            command.args(["--device", &spec]);
        }
        let control = folder.path().join("control");
        command.arg("--control").arg(&control).args(arguments);
        if !arguments.contains(&"--fabric") {
            command.args(["--fabric", "ideal"]);
        }
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        let emulator = Self {
            folder,
            child,
            address: None,
        };
        wait_for("emulator", || UnixStream::connect(&control));
        emulator
    }

    /// One that others may join.
    pub fn listening(devices: usize, first: usize) -> Self {
        Self::listening_at(devices, first, free_address())
    }

    /// The same at an address.
    pub fn listening_at(devices: usize, first: usize, address: SocketAddr) -> Self {
        let mut emulator = Self::numbered(devices, first, &["--listen", &address.to_string()]);
        emulator.address = Some(address);
        emulator
    }

    /// Two emulators of one device each, of which the second has more arguments. They wait for each other as long as anything
    /// may take.
    pub fn pair(arguments: &[&str]) -> [Self; 2] {
        let silence = format!("ideal,silence_s={}", patience().as_secs());
        let patient = ["--fabric", &silence];
        let address = free_address();
        let listen = ["--listen", &address.to_string()].map(str::to_owned);
        let listen = listen.each_ref().map(String::as_str);
        let mut first = Self::numbered(1, 1, &[listen, patient].concat());
        first.address = Some(address);
        let second = Self::joining_with(1, 2, &first, &[&patient, arguments].concat());
        first.wait_for_peers(1);
        second.wait_for_peers(1);
        [first, second]
    }

    /// One that joins another one.
    pub fn joining(devices: usize, first: usize, other: &Self) -> Self {
        Self::joining_with(devices, first, other, &[])
    }

    /// The same with more arguments.
    pub fn joining_with(devices: usize, first: usize, other: &Self, arguments: &[&str]) -> Self {
        let address = other.address.unwrap().to_string();
        let arguments = [&["--join", &address], arguments].concat();
        Self::numbered(devices, first, &arguments)
    }

    /// Where it listens for others.
    pub fn address(&self) -> SocketAddr {
        self.address.unwrap()
    }

    /// The socket of a device.
    pub fn device(&self, device: usize) -> PathBuf {
        self.folder.path().join(format!("efa{device}"))
    }

    /// The control socket.
    pub fn control(&self) -> PathBuf {
        self.folder.path().join("control")
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks the control socket.
    pub fn ask(&self, request: &Value) -> Value {
        ask(&self.control(), request)
    }

    /// Waits until there are so many devices of other emulators.
    pub fn wait_for_peers(&self, devices: u64) {
        wait_until("other emulator with as many devices", || {
            let reply = self.ask(&json!({"command": "fabric"}));
            reply["ok"]["remote_devices"] == devices
        });
    }

    /// Ends it as the kernel does without memory.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// How much memory it has, in bytes, without what is shared with machines.
    pub fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("RssAnon:"))
            .unwrap();
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

/// Asks a control socket.
fn ask(control: &Path, request: &Value) -> Value {
    let mut stream = UnixStream::connect(control).unwrap();
    stream.set_read_timeout(Some(patience())).unwrap();
    stream.write_all(format!("{request}\n").as_bytes()).unwrap();
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply).unwrap();
    serde_json::from_str(&reply).unwrap()
}

/// The emulator's program: `EFA_EMU`, or what is built of this workspace beside the test or example that runs.
fn program() -> PathBuf {
    if let Some(path) = env::var_os("EFA_EMU") {
        return path.into();
    }
    let own = env::current_exe().unwrap();
    let path = own.ancestors().nth(2).unwrap().join("efa-emu");
    assert!(
        path.exists(),
        "build efa-emu first: {} is missing",
        path.display()
    );
    path
}
