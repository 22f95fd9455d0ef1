// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Emulates Elastic Fabric Adapters, which virtual machines attach over vfio-user sockets.

#![forbid(unsafe_code)]

mod args;
mod control;
mod lines;
mod peers;
mod trace;
mod watch;

use std::{
    fs,
    io::{self, IsTerminal},
    net::TcpListener,
    os::unix::net::UnixListener,
    panic,
    path::{Path, PathBuf},
    process::{self, ExitCode},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use efa_hw::pci;
use efa_model::{Instance, Profile, Rdma};
use efa_vfio::{Fabric, Function, Server, listen};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};
use tracing::Level;

use args::{Args, Command};
use trace::Trace;

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match &args.command {
        Some(Command::Ctl { socket, commands }) => ctl(socket, commands),
        Some(Command::Watch {
            socket,
            json,
            interval,
            times,
        }) => watch::watch(socket, Duration::from_secs_f64(*interval), *times, *json)
            .map(|()| ExitCode::SUCCESS)
            .map_err(|error| format!("cannot watch {}: {error}", socket.display())),
        None if args.list_profiles => list_profiles(),
        None if args.list_instances => list_instances(),
        None => emulate(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("efa-emu: {error}");
        ExitCode::FAILURE
    })
}

fn ctl(socket: &Path, commands: &[String]) -> Result<ExitCode, String> {
    match control::send(socket, commands) {
        Ok(true) => Ok(ExitCode::SUCCESS),
        Ok(false) => Ok(ExitCode::FAILURE),
        Err(error) => Err(format!("cannot talk to {}: {error}", socket.display())),
    }
}

fn list_profiles() -> Result<ExitCode, String> {
    for profile in [
        Profile::Efa0,
        Profile::Efa1,
        Profile::Efa2,
        Profile::Efa3,
        Profile::Efa4,
    ] {
        let what = match profile {
            Profile::Efa0 => {
                "messages only: no RDMA, event queues, network statistics or checksums"
            }
            Profile::Efa1 => "and RDMA read and event queues",
            Profile::Efa2 => {
                "and RDMA write, network statistics, checksums and kernel verbs (the default)"
            }
            Profile::Efa3 => "and 128-byte send work requests and a faster link",
            Profile::Efa4 => "and 128-byte admin commands with checksums and a faster link",
        };
        println!(
            "{:x}  {:04x}:{0:x}  {what}",
            profile.pci_device(),
            pci::VENDOR
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn list_instances() -> Result<ExitCode, String> {
    for instance in Instance::ALL {
        let rdma = match instance.rdma {
            Rdma::None => "no RDMA",
            Rdma::Read => "RDMA read",
            Rdma::ReadWrite => "RDMA read and write",
        };
        println!(
            "{:16}  {:2} x {:x}, {} Gbit/s each, {rdma}",
            instance.name,
            instance.devices,
            instance.profile.pci_device(),
            instance.link_gbps,
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn emulate(args: &Args) -> Result<ExitCode, String> {
    start_logging(args.verbose);
    let mut signals = Signals::new([SIGINT, SIGTERM])
        .map_err(|error| format!("cannot handle signals: {error}"))?;
    let start = Instant::now();
    let fabric = Arc::new(Fabric::new(
        args.fabric.clone(),
        args.seed,
        fastrand::u64(..),
        start,
    ));
    let specs = args.devices();
    let devices = devices(args, &specs, &fabric)?;
    if let Some(scenario) = &args.scenario {
        control::play(scenario, &devices)?;
    }

    let mut sockets = Sockets::default();
    let servers = specs
        .iter()
        .zip(devices.iter())
        .map(|(spec, device)| {
            let listener = sockets.listen(&spec.socket)?;
            Ok(Server::new(listener, Arc::clone(&device.function)))
        })
        .collect::<Result<Vec<_>, String>>()?;
    let control = args
        .control
        .as_deref()
        .map(|path| sockets.listen(path))
        .transpose()?;

    let sockets = Arc::new(sockets);
    exit_on_panic(Arc::clone(&sockets));
    if let Some(address) = &args.listen {
        let listener = TcpListener::bind(address)
            .map_err(|error| format!("cannot listen at {address}: {error}"))?;
        let (sockets, fabric) = (Arc::clone(&sockets), Arc::clone(&fabric));
        let work = move || {
            let error = peers::listen(&listener, &fabric);
            sockets.fail(&format!("other emulators can't join any more: {error}"))
        };
        spawn("listener".into(), work)?;
    }
    for address in args.join.clone() {
        let fabric = Arc::clone(&fabric);
        spawn(format!("link to {address}"), move || {
            peers::join(&address, &fabric)
        })?;
    }
    spawn("fabric".into(), move || fabric.run_timer())?;
    for (index, server) in servers.into_iter().enumerate() {
        let sockets = Arc::clone(&sockets);
        let work = move || sockets.fail(&format!("device {index} is lost: {}", server.run()));
        spawn(format!("device {index}"), work)?;
    }
    if let Some(listener) = control {
        let sockets = Arc::clone(&sockets);
        let work = move || {
            sockets.fail(&format!(
                "the control socket is lost: {}",
                control::serve(&listener, &devices)
            ))
        };
        spawn("control".into(), work)?;
    }

    signals.forever().next();
    sockets.remove();
    Ok(ExitCode::SUCCESS)
}

/// The devices as they are after power on.
fn devices(
    args: &Args,
    specs: &[args::DeviceSpec],
    fabric: &Arc<Fabric>,
) -> Result<Arc<[control::Device]>, String> {
    let trace = match &args.trace {
        Some(path) => Trace::create(path)
            .map_err(|error| format!("cannot write the trace {}: {error}", path.display()))?,
        None => Trace::none(),
    };
    let device = |(index, spec): (usize, &args::DeviceSpec)| {
        let config = spec.config(index);
        let profile = config.profile;
        let function = Function::new(fabric, config, spec.missing_bar, trace.tracer(index))
            .map_err(|error| format!("no memory for {}: {error}", spec.socket.display()))?;
        Ok(control::Device {
            profile,
            socket: spec.socket.clone(),
            function: Arc::new(function),
            fabric: Arc::clone(fabric),
            trace: trace.clone(),
        })
    };
    specs.iter().enumerate().map(device).collect()
}

/// The sockets that the program has made.
#[derive(Default)]
struct Sockets(Vec<PathBuf>);

impl Sockets {
    fn listen(&mut self, path: &Path) -> Result<UnixListener, String> {
        let listener = listen(path)
            .map_err(|error| format!("cannot listen at {}: {error}", path.display()))?;
        self.0.push(path.into());
        Ok(listener)
    }

    fn remove(&self) {
        for path in &self.0 {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(%error, path = %path.display(), "a socket stays behind");
                }
                _ => {}
            }
        }
    }

    /// Ends the program because it can't do its work any more.
    fn fail(&self, why: &str) -> ! {
        eprintln!("efa-emu: {why}");
        self.remove();
        process::exit(1)
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A panic in any thread ends the program: a device of which one half works would only hide the fault.
fn exit_on_panic(sockets: Arc<Sockets>) {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        print(panic);
        sockets.fail("that is a fault of the emulator, which ends here")
    }));
}

fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    match thread::Builder::new().name(name).spawn(work) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("cannot start a thread: {error}")),
    }
}

fn start_logging(verbose: u8) {
    let level = match verbose {
        0 => Level::WARN,
        1 => Level::INFO,
        _ => Level::DEBUG,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .init();
}
