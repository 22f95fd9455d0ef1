// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Programs in the sandbox, each in a process of its own.

use std::{
    backtrace::Backtrace,
    fs::{self, File},
    io::{self, Write},
    net::{TcpListener, TcpStream},
    os::unix::{
        net::{UnixListener, UnixStream},
        process::{CommandExt, ExitStatusExt},
    },
    process::{Command, Output},
    thread,
};

use super::*;
use crate::log;
use rustix::{
    fs::{MemfdFlags, memfd_create},
    process::{Pid, Signal, kill_process},
};

/// Variable of a child process: its attempt. The tests themselves could not leave the sandbox again.
const ATTEMPT: &str = "EFA_EMU_TEST_ATTEMPT";

/// What a child process attempts: mode, port of an emulator that it joins, folder of its sockets, attempt, and argument.
type Attempt<'a> = (&'a str, Option<u16>, Option<&'a Path>, &'a str, &'a str);

/// How the child process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    Refused,
    /// Killed by the signal that a forbidden system call raises.
    Killed,
}

const DONE: i32 = 40;
const REFUSED: i32 = 41;

/// Child process of the tests below, which only they start.
#[test]
#[ignore = "is started by other tests"]
fn attempt() {
    let Ok(attempt) = env::var(ATTEMPT) else {
        return;
    };
    let (mode, port, folder, what, with): Attempt<'_> = serde_json::from_str(&attempt).unwrap();
    let sockets = folder.map(|folder| folder.join("socket"));
    let needs = Needs { sockets: sockets.into_iter().collect(), ports: port.into_iter().collect() };
    log::start(0);
    match mode {
        "on" => enter(Mode::On, &needs).unwrap(),
        "off" => enter(Mode::Off, &needs).unwrap(),
        "auto" => enter(Mode::Auto, &needs).unwrap(),
        "old" => {
            // Simulates a kernel without Landlock.
            let landlock = Rules::from([(libc::SYS_landlock_create_ruleset, vec![])]);
            let refused = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
            let filter = program(landlock, SeccompAction::Allow, refused).unwrap();
            seccompiler::apply_filter(&filter).unwrap();
            enter(Mode::Auto, &needs).unwrap();
        }
        _ => restrict_calls(Landlock::None, &needs).unwrap(),
    }
    process::exit(match perform(what, with) {
        Ok(()) => DONE,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => REFUSED,
        Err(error) => panic!("{error}"),
    });
}

fn perform(what: &str, with: &str) -> io::Result<()> {
    match what {
        "read" => File::open(with).map(drop),
        "create" => File::create(with).map(drop),
        "remove" => fs::remove_file(with),
        "fork" => Command::new("/bin/true").status().map(drop),
        "exec" => Err(Command::new("/bin/true").exec()),
        "tcp" => TcpStream::connect(with).map(drop),
        "unix" => UnixStream::connect(with).map(drop),
        "kill" => {
            let parent = Pid::from_raw(with.parse().unwrap()).unwrap();
            Ok(kill_process(parent, Signal::WINCH)?)
        }
        "work" => {
            let memory = File::from(memfd_create("memory", MemfdFlags::CLOEXEC)?);
            memory.set_len(1 << 20)?;
            let work = move || memory.metadata().map(|metadata| metadata.len());
            let length = thread::Builder::new().name("worker".into()).spawn(work)?;
            assert_eq!(length.join().unwrap()?, 1 << 20);
            Ok(())
        }
        "backtrace" => {
            let backtrace = Backtrace::force_capture().to_string();
            io::stderr().write_all(backtrace.as_bytes())
        }
        _ => panic!("unknown attempt: {what}"),
    }
}

fn run(attempt: Attempt<'_>) -> (End, Output) {
    let name = format!("{}::attempt", module_path!().split_once("::").unwrap().1);
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", &name, "--ignored", "--nocapture"])
        .env(ATTEMPT, serde_json::to_string(&attempt).unwrap())
        .output()
        .unwrap();
    let status = output.status;
    let end = match (status.code(), status.signal()) {
        (Some(DONE), _) => End::Done,
        (Some(REFUSED), _) => End::Refused,
        (_, Some(libc::SIGSYS)) => End::Killed,
        _ => panic!("{attempt:?}: {status}\n{output:?}"),
    };
    (end, output)
}

/// Whether this kernel has all required features, and this build can be sandboxed.
fn can_be_sandboxed() -> bool {
    if Mode::default() == Mode::Off {
        return false;
    }
    let is_supported = has_required();
    if !is_supported {
        println!("skipped: this kernel lacks required features of Landlock");
    }
    is_supported
}

#[test]
fn unneeded_operations_are_refused() {
    if !can_be_sandboxed() {
        return;
    }
    let [own, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let paths = [own.path().join("file"), other.path().join("file")];
    let [removable, file] = paths.each_ref().map(|path| path.to_str().unwrap());
    for path in &paths {
        fs::write(path, "secret").unwrap();
    }
    let socket = other.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [joined, elsewhere] = listeners.each_ref().map(|tcp| tcp.local_addr().unwrap());
    let [there, elsewhere] = [joined, elsewhere].map(|address| address.to_string());
    let own_id = process::id().to_string();
    let port = Some(joined.port());
    for (mode, port, what, with, end) in [
        ("on", None, "read", file, End::Refused),
        ("on", None, "read", "/proc/self/exe", End::Done),
        ("on", None, "create", file, End::Refused),
        ("on", None, "fork", "", End::Killed),
        ("on", None, "exec", "", End::Killed),
        ("on", None, "tcp", &elsewhere, End::Killed),
        ("on", None, "unix", socket.to_str().unwrap(), End::Killed),
        ("on", None, "kill", &own_id, End::Killed),
        ("on", None, "work", "", End::Done),
        // Only ports of joined emulators are allowed.
        ("on", port, "tcp", &*there, End::Done),
        ("on", port, "tcp", &elsewhere, End::Refused),
        ("on", port, "unix", "/socket", End::Killed),
        // Without Landlock, no file is opened.
        ("seccomp", None, "read", "/proc/self/exe", End::Refused),
        ("seccomp", None, "work", "", End::Done),
        // Without the sandbox, all of this succeeds.
        ("off", None, "read", file, End::Done),
        ("off", None, "create", file, End::Done),
        ("off", None, "fork", "", End::Done),
        ("off", None, "tcp", &elsewhere, End::Done),
        ("off", None, "unix", socket.to_str().unwrap(), End::Done),
        ("off", None, "kill", &own_id, End::Done),
        // Only sockets of the program can be removed.
        ("on", None, "remove", file, End::Refused),
        ("on", None, "remove", removable, End::Done),
    ] {
        let found = run((mode, port, Some(own.path()), what, with)).0;
        assert_eq!(found, end, "{mode} {what} {with}");
    }
    assert_eq!(paths.map(|path| path.exists()), [false, true]);
}

/// An incomplete sandbox is logged as a warning. A backtrace has names.
#[test]
fn what_the_sandboxed_program_prints() {
    if !can_be_sandboxed() {
        return;
    }
    for (mode, what, part, is_printed) in [
        ("auto", "work", "nothing by Landlock", false),
        ("old", "work", "nothing by Landlock", true),
        ("on", "backtrace", "perform", true),
        ("on", "backtrace", "sandbox/tests.rs", true),
    ] {
        let (end, output) = run((mode, None, None, what, ""));
        assert_eq!(end, End::Done, "{mode}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(text.contains(part), is_printed, "{mode}: {text}");
    }
}
