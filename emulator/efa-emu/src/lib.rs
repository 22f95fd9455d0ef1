// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Emulates Elastic Fabric Adapters, which virtual machines attach over vfio-user sockets.
//!
//! This library contains the whole program, for its `main()` and its tests.

#![forbid(unsafe_code)]

mod args;
mod clients;
mod control;
mod deadline;
mod descriptors;
mod events;
mod generate;
mod inspect;
mod instance;
mod lines;
mod log;
mod metrics;
pub mod peers;
mod probe;
mod sandbox;

use std::{
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    num::NonZero,
    os::unix::net::UnixListener,
    panic,
    path::Path,
    process::{self, ExitCode},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use efa_vfio::{Allowed, Limits, Runtime, Server, Socket, listen};
use rustix::thread::set_current_timer_slack;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

use args::{Args, Command};
pub use control::Emulator;
use events::Recorder;
use instance::{Instance, Rdma};
use peers::Peers;
use sandbox::Needs;

/// Time that the program waits at its end for readers of the trace and of the capture.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// Limit on threads that move packets. More of them would only wait for each other.
const MAX_THREADS: usize = 8;

/// Runs the program with its command line.
pub fn main() -> ExitCode {
    let args = Args::parse();
    let result = match &args.command {
        Some(Command::Ctl { socket, commands }) => ctl(socket, commands),
        Some(Command::Probe) => probe::probe().map(|text| {
            print!("{text}");
            true
        }),
        Some(Command::Schema) => schema().map(|()| true),
        Some(Command::Generate { folder }) => generate::generate(folder)
            .map(|()| true)
            .map_err(|error| format!("cannot write to {}: {error}", folder.display())),
        None if args.list_profiles => {
            println!("{PROFILES}");
            Ok(true)
        }
        None if args.list_instances => {
            list_instances();
            Ok(true)
        }
        None => emulate(&args).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("efa-emu: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Sends control commands. Returns whether all succeed.
fn ctl(socket: &Path, commands: &[String]) -> Result<bool, String> {
    control::send(socket, commands).map_err(|error| {
        let socket = socket.display();
        format!(
            "cannot use the control socket {socket} ({error}): name a --control socket of a running efa-emu, and run this as a user with write access to it"
        )
    })
}

fn schema() -> Result<(), String> {
    let schemas = serde_json::to_string_pretty(&control::protocol::schemas());
    println!("{}", schemas.map_err(|error| error.to_string())?);
    Ok(())
}

/// The profiles, with their PCI ids.
const PROFILES: &str = "\
efa0  1d0f:efa0  messages only: no RDMA, event queues, network statistics or checksums
efa1  1d0f:efa1  adds RDMA read and event queues
efa2  1d0f:efa2  adds RDMA write, network statistics, checksums and kernel verbs (the default)
efa3  1d0f:efa3  adds 128-byte send work requests and a faster link
efa4  1d0f:efa4  adds 128-byte admin commands with checksums and a faster link";

fn list_instances() {
    for (name, instance) in Instance::known() {
        let rdma = match instance.rdma {
            Rdma::None => "no RDMA",
            Rdma::Read => "RDMA read",
            Rdma::ReadWrite => "RDMA read and write",
        };
        let (count, id, gbps) = (instance.devices, instance.profile.pci_device(), instance.link_gbps);
        println!("{name:16}  {count:2} x {id:x}, {gbps} Gbit/s each, {rdma}");
    }
}

fn emulate(args: &Args) -> Result<(), String> {
    log::start(args.verbose);
    let joined = args.join.iter().map(|target| resolve(target));
    let joined = joined.collect::<Result<Vec<_>, _>>()?;
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| format!("cannot handle signals: {error}"))?;
    // Threads that start from now on wake up when packets are due. The default timer slack of 50 microseconds is longer than a
    // packet takes on the realistic network. If the slack can't be changed, packets are late.
    let _ = set_current_timer_slack(NonZero::new(1));
    let start = Instant::now();
    // 24 bits are short enough to type.
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1 << 24));
    if !args.fabric.is_ideal() {
        eprintln!("efa-emu: losses and delays of the network are random; reproduce them with --seed {seed}");
    }
    let runtime = Arc::new(Runtime::new(args.fabric.clone(), seed, start));
    let specs = args.devices();
    descriptors::check_memory(args)?;
    let files = descriptors::files(descriptors::raise(), args)?;
    let names = specs.iter().map(|spec| spec.socket.display().to_string());
    let names: Vec<_> = names.collect();
    let (recorder, writers) = Recorder::new(&args.events, &names, start)?;
    let mut emulator = Emulator::recorded(Arc::clone(&runtime), recorder.clone());
    for (index, (spec, name)) in specs.iter().zip(&names).enumerate() {
        let added = emulator.add(spec.socket.clone(), spec.config(index), spec.missing_bar);
        added.map_err(|error| format!("cannot create the device of {name}: {error}"))?;
        let device = &emulator.devices()[index];
        device.function.limit_memory(files, spec.memory());
    }
    let emulator = Arc::new(emulator);
    if let Some(scenario) = &args.scenario {
        control::play(scenario, &emulator)?;
    }

    let allowed = match args.file_memory {
        true => Allowed::FilesOfDisks,
        false => Allowed::Memory,
    };
    let mut sockets = Sockets::default();
    let mut servers = Vec::new();
    for device in emulator.devices() {
        let listener = sockets.listen(&device.socket)?;
        let function = Arc::clone(&device.function);
        servers.push(Server::new(listener, function, Limits::default(), allowed));
    }
    let listener = args.listen.as_deref().map(bind).transpose()?;
    let metrics = args.metrics.as_deref().map(bind).transpose()?;
    // Bound last: all other sockets exist once one of these does.
    let mut controls = Vec::new();
    for scope in args.control.clone() {
        controls.push((sockets.listen(&scope.path)?, scope));
    }

    let sockets = Arc::new(sockets);
    exit_on_panic(Arc::clone(&sockets), recorder.clone());
    let peers = Peers::new(Arc::clone(&runtime));
    let threads = thread::available_parallelism().map_or(1, NonZero::get);

    // From here on, no file or socket is opened by name, and all threads are sandboxed.
    let needs = Needs {
        sockets: sockets.0.iter().map(|it| it.path().to_owned()).collect(),
        ports: joined.iter().flatten().map(SocketAddr::port).collect(),
    };
    sandbox::enter(args.sandbox, &needs)?;
    for work in writers {
        spawn("events".into(), work)?;
    }
    if let Some(listener) = listener {
        let peers = peers.clone();
        spawn("listener".into(), move || peers.listen(&listener))?;
    }
    for (target, addresses) in args.join.iter().zip(joined) {
        let (peers, target) = (peers.clone(), target.clone());
        let name = format!("link to {target}");
        spawn(name, move || peers.join(&target, &addresses))?;
    }
    for index in 0..threads.min(MAX_THREADS) {
        let runtime = Arc::clone(&runtime);
        spawn(format!("fabric {index}"), move || runtime.work())?;
    }
    spawn("watch".into(), move || runtime.watch())?;
    for (index, server) in servers.into_iter().enumerate() {
        spawn(format!("device {index}"), move || server.run())?;
    }
    if let Some(listener) = metrics {
        let emulator = Arc::clone(&emulator);
        let work = move || metrics::serve(&listener, &emulator);
        spawn("metrics".into(), work)?;
    }
    for (listener, scope) in controls {
        let emulator = Arc::clone(&emulator);
        let work = move || control::serve(&listener, scope, &emulator);
        spawn("control".into(), work)?;
    }

    signals.forever().next();
    sockets.remove();
    recorder.finish(FINISH_TIMEOUT);
    Ok(())
}

fn bind(address: &str) -> Result<TcpListener, String> {
    TcpListener::bind(address)
        .map_err(|error| format!("cannot listen at {address}: {error}; give an address of this host and a free port"))
}

/// Resolves the addresses of an emulator to join, as the sandbox does not allow that later.
fn resolve(target: &str) -> Result<Vec<SocketAddr>, String> {
    match target.to_socket_addrs() {
        Ok(addresses) => Ok(addresses.collect()),
        Err(error) => {
            Err(format!("cannot join {target}: {error}; give ADDRESS:PORT, or NAME:PORT with a name that resolves now"))
        }
    }
}

/// The sockets that the program has created.
#[derive(Default)]
struct Sockets(Vec<Socket>);

impl Sockets {
    fn listen(&mut self, path: &Path) -> Result<UnixListener, String> {
        let (listener, socket) = listen(path).map_err(|error| {
            let path = path.display();
            format!("cannot listen at {path}: {error}; name another path")
        })?;
        self.0.push(socket);
        Ok(listener)
    }

    fn remove(&self) {
        for socket in &self.0 {
            if let Err(error) = socket.remove() {
                let path = socket.path().display();
                tracing::warn!(%error, %path, "cannot remove a socket");
            }
        }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Makes a panic in any thread end the program, as a half-working device would only hide the fault.
fn exit_on_panic(sockets: Arc<Sockets>, recorder: Recorder) {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        print(panic);
        eprintln!("efa-emu: this is a bug of the emulator, which exits now: please report it with the lines above");
        sockets.remove();
        recorder.finish(FINISH_TIMEOUT);
        process::exit(1)
    }));
}

fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    match thread::Builder::new().name(name).spawn(work) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!(
            "cannot start a thread: {error}; raise the limit of threads (ulimit -u, or TasksMax= of a unit)"
        )),
    }
}
