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

use rustix::{
    fs::{MemfdFlags, memfd_create},
    process::{Pid, Signal, kill_process},
};

use super::*;
use crate::log;

/// Variables of a child process: its attempt and its argument. The tests themselves could not leave the sandbox again.
const ATTEMPT: &str = "EFA_EMU_TEST_TRIES";
const ARGUMENT: &str = "EFA_EMU_TEST_WITH";
const MODE: &str = "EFA_EMU_TEST_MODE";
const PORT: &str = "EFA_EMU_TEST_PORT";
/// Folder of its sockets.
const FOLDER: &str = "EFA_EMU_TEST_FOLDER";

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
    let Ok(what) = env::var(ATTEMPT) else {
        return;
    };
    let with = env::var(ARGUMENT).unwrap();
    let needs = Needs {
        sockets: env::var_os(FOLDER)
            .map(|folder| Path::new(&folder).join("socket"))
            .into_iter()
            .collect(),
        ports: env::var(PORT)
            .iter()
            .map(|port| port.parse().unwrap())
            .collect(),
    };
    match env::var(MODE).unwrap().as_str() {
        "on" => enter(Mode::On, &needs).unwrap(),
        "off" => enter(Mode::Off, &needs).unwrap(),
        "auto" => {
            log::start(0);
            enter(Mode::Auto, &needs).unwrap();
        }
        "old" => {
            log::start(0);
            // Simulates a kernel without Landlock.
            let landlock = Rules::from([(libc::SYS_landlock_create_ruleset, vec![])]);
            let refused = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
            let filter = program(landlock, SeccompAction::Allow, refused).unwrap();
            seccompiler::apply_filter(&filter).unwrap();
            enter(Mode::Auto, &needs).unwrap();
        }
        _ => restrict_calls(Landlock::None, &needs).unwrap(),
    }
    let result = perform(&what, &with);
    process::exit(match result {
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

fn run(mode: &str, port: Option<u16>, what: &str, with: &str) -> (End, Output) {
    run_with(mode, port.map(|port| (PORT, port.to_string())), what, with)
}

fn run_with(mode: &str, variable: Option<(&str, String)>, what: &str, with: &str) -> (End, Output) {
    let name = format!("{}::attempt", module_path!().split_once("::").unwrap().1);
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", &name, "--ignored", "--nocapture"])
        .env(ATTEMPT, what)
        .env(ARGUMENT, with)
        .env(MODE, mode)
        .envs(variable)
        .output()
        .unwrap();
    let status = output.status;
    let end = match (status.code(), status.signal()) {
        (Some(DONE), _) => End::Done,
        (Some(REFUSED), _) => End::Refused,
        (_, Some(libc::SIGSYS)) => End::Killed,
        _ => panic!("{what}: {status}\n{output:?}"),
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
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "secret").unwrap();
    let file = file.to_str().unwrap();
    let socket = folder.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap().to_string();
    let own = process::id().to_string();
    for (what, with, end) in [
        ("read", file, End::Refused),
        ("read", "/proc/self/exe", End::Done),
        ("create", file, End::Refused),
        ("fork", "", End::Killed),
        ("exec", "", End::Killed),
        ("tcp", &address, End::Killed),
        ("unix", socket.to_str().unwrap(), End::Killed),
        ("kill", &own, End::Killed),
        ("work", "", End::Done),
    ] {
        assert_eq!(run("on", None, what, with).0, end, "{what} {with}");
        // Without the sandbox, the attempt succeeds.
        if what != "exec" {
            assert_eq!(run("off", None, what, with).0, End::Done, "{what} {with}");
        }
    }
}

#[test]
fn only_ports_of_joined_emulators_are_allowed() {
    if !can_be_sandboxed() {
        return;
    }
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [there, elsewhere] = listeners.each_ref().map(|tcp| tcp.local_addr().unwrap());
    let attempt = |address: &str, what| run("on", Some(there.port()), what, address).0;
    assert_eq!(attempt(&there.to_string(), "tcp"), End::Done);
    assert_eq!(attempt(&elsewhere.to_string(), "tcp"), End::Refused);
    assert_eq!(attempt("/socket", "unix"), End::Killed);
}

#[test]
fn sockets_of_the_program_can_be_removed() {
    if !can_be_sandboxed() {
        return;
    }
    let [own, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let attempt = |folder: &tempfile::TempDir| {
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let variable = (FOLDER, own.path().to_str().unwrap().to_owned());
        let (end, _) = run_with("on", Some(variable), "remove", file.to_str().unwrap());
        (end, file.exists())
    };
    assert_eq!(attempt(&own), (End::Done, false));
    assert_eq!(attempt(&other), (End::Refused, true));
}

#[test]
fn without_landlock_no_file_is_opened() {
    if Mode::default() == Mode::Off {
        return;
    }
    let (end, _) = run("seccomp", None, "read", "/proc/self/exe");
    assert_eq!(end, End::Refused);
    assert_eq!(run("seccomp", None, "work", "").0, End::Done);
}

#[test]
fn an_incomplete_sandbox_is_logged_as_a_warning() {
    if !can_be_sandboxed() {
        return;
    }
    for (mode, warns) in [("auto", false), ("old", true)] {
        let (end, output) = run(mode, None, "work", "");
        assert_eq!(end, End::Done, "{mode}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            text.contains("nothing by Landlock"),
            warns,
            "{mode}: {text}"
        );
    }
    let all = [
        Landlock::Whole,
        Landlock::Required,
        Landlock::Part,
        Landlock::None,
    ];
    let is_complete = |seccomp| all.map(|landlock| Applied { landlock, seccomp }.is_complete());
    assert_eq!(is_complete(true), [true, true, false, false]);
    assert_eq!(is_complete(false), [false; 4]);
}

#[test]
fn a_backtrace_has_names() {
    if !can_be_sandboxed() {
        return;
    }
    let (end, output) = run("on", None, "backtrace", "");
    assert_eq!(end, End::Done);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("perform") && text.contains("sandbox/tests.rs"),
        "{text}"
    );
}
