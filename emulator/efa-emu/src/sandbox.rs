// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The sandbox, entered once all files and sockets are open: Landlock for files and ports, seccomp for system calls.
//!
//! Both apply to all threads that start afterwards, and cannot be undone. An attacker that controls the program cannot open
//! another file, connect to another socket or execute a program. Descriptors that are open, or that VMMs pass, still work.
//!
//! All threads have the same filter: as they share their memory, control of one is control of all. These are the system calls of
//! each thread, besides those of the threading library and of the allocator:
//!
//! | thread | system calls |
//! |---|---|
//! | main | waits for signals, removes the sockets |
//! | `device`, and one per VMM | accepts, exchanges messages with descriptors, maps and seals memory files, and all of `fabric` |
//! | `fabric` | reads and writes guest memory that is not mapped, signals eventfds |
//! | `control`, and one per client | accepts, reads, writes |
//! | `metrics`, and one per client; `listener`, `link`, `link writer` | the same over TCP; `--join` makes and connects sockets |

use std::{
    collections::BTreeMap,
    env, fmt,
    path::{Path, PathBuf},
    process,
};

use clap::ValueEnum;
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, NetPort, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

/// Whether the program is sandboxed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// The program fails if the kernel lacks a part of the sandbox that is required.
    On,
    /// The program applies as much of the sandbox as the kernel supports.
    Auto,
    /// The program has no sandbox.
    Off,
}

impl Default for Mode {
    fn default() -> Self {
        // When the program ends, a sanitizer starts a process that looks for leaks.
        match cfg!(sanitized) {
            true => Self::Off,
            false => Self::Auto,
        }
    }
}

/// Resources that the sandboxed program has to access by path or port.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    /// Sockets, which the program removes when it ends.
    pub(crate) sockets: Vec<PathBuf>,
    /// TCP ports to which the program connects.
    pub(crate) ports: Vec<u16>,
}

/// Parts of the sandbox in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Applied {
    landlock: Landlock,
    seccomp: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Landlock {
    Whole,
    /// All features that [`Mode::On`] requires.
    Required,
    /// Only the features that an older kernel has.
    Part,
    None,
}

impl Applied {
    /// Whether all features that [`Mode::On`] requires are in effect.
    fn is_complete(self) -> bool {
        self.seccomp && matches!(self.landlock, Landlock::Whole | Landlock::Required)
    }
}

/// Landlock version that [`Mode::On`] requires: TCP rules, since Linux 6.7.
const REQUIRED: ABI = ABI::V4;

/// Landlock version that is used if available: ioctl of device files, signals and abstract sockets of other programs.
const PREFERRED: ABI = ABI::V6;

/// Confines this thread, and those that it starts from now on. Logs what was applied, at level WARN if that is less than
/// [`Mode::On`] requires, otherwise at level INFO.
///
/// # Errors
///
/// The kernel lacks a required feature, and the mode is [`Mode::On`].
pub(crate) fn enter(mode: Mode, needs: &Needs) -> Result<(), String> {
    if mode == Mode::Off {
        return Ok(());
    }
    let is_needed = mode == Mode::On;
    let failed = |what, error: &dyn fmt::Display| {
        let message = format!("cannot apply {what}: {error}");
        if is_needed {
            return Err(format!("{message}; use --sandbox=auto to run without it"));
        }
        tracing::warn!("{message}");
        Ok(())
    };
    let landlock = match restrict_files(is_needed, needs) {
        Ok(landlock) => landlock,
        Err(error) => {
            failed("Landlock", &error)?;
            Landlock::None
        }
    };
    let seccomp = match restrict_calls(landlock, needs) {
        Ok(()) => true,
        Err(error) => {
            failed("seccomp", &error)?;
            false
        }
    };
    let applied = Applied { landlock, seccomp };
    if applied.is_complete() {
        tracing::info!("{applied}");
    } else {
        tracing::warn!("{applied}");
    }
    Ok(())
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let landlock = match self.landlock {
            Landlock::Whole => "files, ports and signals by Landlock",
            Landlock::Required => "files and ports by Landlock",
            Landlock::Part => "some rules by Landlock",
            Landlock::None => "nothing by Landlock",
        };
        let seccomp = match self.seccomp {
            true => "system calls by seccomp",
            false => "nothing by seccomp",
        };
        write!(f, "sandboxed: {landlock}, {seccomp}")
    }
}

/// Restricts the files and TCP ports of the program to those that it needs.
fn restrict_files(is_needed: bool, needs: &Needs) -> Result<Landlock, landlock::RulesetError> {
    let level = match is_needed {
        true => CompatLevel::HardRequirement,
        false => CompatLevel::BestEffort,
    };
    let mut ruleset = Ruleset::default()
        .set_compatibility(level)
        .handle_access(AccessFs::from_all(REQUIRED))?
        .handle_access(AccessNet::from_all(REQUIRED))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(PREFERRED))?
        .scope(Scope::from_all(PREFERRED))?
        .create()?;
    // For the backtrace of a panic.
    for own in ["/proc/self/exe", "/proc/self/maps"] {
        if let Ok(file) = PathFd::new(own) {
            ruleset = ruleset.add_rule(PathBeneath::new(file, AccessFs::ReadFile))?;
        }
    }
    for socket in &needs.sockets {
        if let Ok(folder) = PathFd::new(folder_of(socket)) {
            ruleset = ruleset.add_rule(PathBeneath::new(folder, AccessFs::RemoveFile))?;
        }
    }
    for port in &needs.ports {
        ruleset = ruleset.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
    }
    let has_required = has_required();
    Ok(match ruleset.restrict_self()?.ruleset {
        RulesetStatus::FullyEnforced => Landlock::Whole,
        RulesetStatus::PartiallyEnforced if has_required => Landlock::Required,
        RulesetStatus::PartiallyEnforced => Landlock::Part,
        RulesetStatus::NotEnforced => Landlock::None,
    })
}

/// Whether this kernel has all Landlock features that [`Mode::On`] requires.
fn has_required() -> bool {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessNet::from_all(REQUIRED))
        .and_then(Ruleset::create);
    ruleset.is_ok()
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Restricts the program to the system calls that it needs. Any other call kills it.
fn restrict_calls(landlock: Landlock, needs: &Needs) -> Result<(), seccompiler::Error> {
    // The last filter allows no installation of further filters.
    for filter in filters(landlock, needs)? {
        seccompiler::apply_filter(&filter)?;
    }
    Ok(())
}

/// System calls of the threading library and the allocator, and those without effects on anything else.
const OF_THREADS: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    // Refused, see `no_clone3`.
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sigaltstack,
    libc::SYS_sysinfo,
];

/// System calls on descriptors that the program has.
const OF_DESCRIPTORS: &[i64] = &[
    libc::SYS_accept4,
    libc::SYS_close,
    libc::SYS_fallocate,
    libc::SYS_fdatasync,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_ftruncate,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_io_destroy,
    libc::SYS_io_getevents,
    libc::SYS_io_submit,
    libc::SYS_ioctl,
    libc::SYS_lseek,
    libc::SYS_memfd_create,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_unlinkat,
    libc::SYS_write,
    libc::SYS_writev,
];

/// System calls that libraries may try but do not depend on. They fail with EACCES, and the program continues.
const REFUSED: &[i64] = &[
    libc::SYS_faccessat,
    libc::SYS_getcwd,
    libc::SYS_readlinkat,
    libc::SYS_uname,
];

/// System calls that only x86-64 has, for the same purposes.
#[cfg(target_arch = "x86_64")]
mod old {
    pub(super) const ALLOWED: &[i64] = &[libc::SYS_poll, libc::SYS_unlink];
    pub(super) const REFUSED: &[i64] = &[
        libc::SYS_access,
        libc::SYS_open,
        libc::SYS_readlink,
        libc::SYS_stat,
    ];
}

#[cfg(not(target_arch = "x86_64"))]
mod old {
    pub(super) const ALLOWED: &[i64] = &[];
    pub(super) const REFUSED: &[i64] = &[];
}

/// Rules by number of the system call, one of which has to match. An empty list always matches.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Returns the filters in the order of their installation. The strictest of their verdicts counts.
fn filters(landlock: Landlock, needs: &Needs) -> Result<Vec<BpfProgram>, BackendError> {
    let errno = |errno: i32| SeccompAction::Errno(errno.unsigned_abs());
    // Filters can't read the arguments of clone3(), which are in memory. With ENOSYS, libc uses clone() instead.
    let no_clone3 = Rules::from([(libc::SYS_clone3, vec![])]);
    let refused = refused(landlock)?;
    let mut allowed = allowed(needs)?;
    for call in refused.keys() {
        allowed.entry(*call).or_default();
    }
    Ok(vec![
        program(no_clone3, SeccompAction::Allow, errno(libc::ENOSYS))?,
        program(refused, SeccompAction::Allow, errno(libc::EACCES))?,
        program(allowed, SeccompAction::KillProcess, SeccompAction::Allow)?,
    ])
}

fn program(
    rules: Rules,
    otherwise: SeccompAction,
    action: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    let arch = TargetArch::try_from(env::consts::ARCH)?;
    BpfProgram::try_from(SeccompFilter::new(rules, otherwise, action, arch)?)
}

/// Returns the calls that fail with EACCES.
fn refused(landlock: Landlock) -> Result<Rules, BackendError> {
    let calls = REFUSED.iter().chain(old::REFUSED);
    let mut rules: Rules = calls.map(|call| (*call, vec![])).collect();
    if landlock == Landlock::None {
        rules.insert(libc::SYS_openat, vec![]);
    }
    // Calls with a path instead of a descriptor.
    for (call, flags) in [(libc::SYS_newfstatat, 3), (libc::SYS_statx, 2)] {
        rules.insert(call, vec![masked(flags, libc::AT_EMPTY_PATH, 0)?]);
    }
    // All requests but FIONBIO, which std uses for sockets.
    let others = [condition(1, SeccompCmpOp::Ne, libc::FIONBIO)?];
    rules.insert(libc::SYS_ioctl, vec![SeccompRule::new(others.into())?]);
    Ok(rules)
}

/// Returns the calls that are allowed, unless they are refused.
fn allowed(needs: &Needs) -> Result<Rules, BackendError> {
    let always = OF_THREADS.iter().chain(OF_DESCRIPTORS).chain(old::ALLOWED);
    let mut rules: Rules = always.map(|call| (*call, vec![])).collect();
    // Creation of threads, but not of processes.
    let thread = masked(0, libc::CLONE_THREAD, libc::CLONE_THREAD)?;
    rules.insert(libc::SYS_clone, vec![thread]);
    // No executable memory.
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![masked(2, libc::PROT_EXEC, 0)?]);
    }
    let commands = [
        libc::F_DUPFD_CLOEXEC,
        libc::F_GETFD,
        libc::F_GETFL,
        libc::F_SETFL,
        libc::F_ADD_SEALS,
        libc::F_GET_SEALS,
    ];
    let commands = commands.map(|command| equal(1, command.unsigned_abs()));
    let commands = commands.into_iter().collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_fcntl, commands);
    let name = equal(0, libc::PR_SET_NAME.unsigned_abs())?;
    rules.insert(libc::SYS_prctl, vec![name]);
    // For abort(), and for writes to huge pages, which a VMM may have freed.
    for call in [libc::SYS_tgkill, libc::SYS_process_vm_writev] {
        rules.insert(call, vec![equal(0, process::id())?]);
    }
    // Landlock restricts the files and the ports.
    rules.insert(libc::SYS_openat, vec![]);
    if !needs.ports.is_empty() {
        rules.insert(libc::SYS_connect, vec![]);
        let tcp = [libc::AF_INET, libc::AF_INET6].map(|family| {
            let family = condition(0, SeccompCmpOp::Eq, family.unsigned_abs())?;
            // The type is in the low 4 bits, below the flags.
            let stream = condition(1, SeccompCmpOp::MaskedEq(0xf), STREAM)?;
            SeccompRule::new(vec![family, stream])
        });
        let tcp = tcp.into_iter().collect::<Result<_, _>>()?;
        rules.insert(libc::SYS_socket, tcp);
    }
    Ok(rules)
}

const STREAM: u32 = libc::SOCK_STREAM.unsigned_abs();

/// Matches if an argument has this value.
fn equal(argument: u8, value: u32) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![condition(argument, SeccompCmpOp::Eq, value)?])
}

/// Matches if an argument, masked by `flag`, equals `value`.
fn masked(argument: u8, flag: i32, value: i32) -> Result<SeccompRule, BackendError> {
    let operator = SeccompCmpOp::MaskedEq(flag.unsigned_abs().into());
    SeccompRule::new(vec![condition(argument, operator, value.unsigned_abs())?])
}

/// Condition on the low 32 bits of an argument. The kernel uses no more bits of the arguments that matter here.
fn condition(
    argument: u8,
    operator: SeccompCmpOp,
    value: impl Into<u64>,
) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value.into())
}

#[cfg(test)]
mod tests {
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

    fn run_with(
        mode: &str,
        variable: Option<(&str, String)>,
        what: &str,
        with: &str,
    ) -> (End, Output) {
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
            text.contains("perform") && text.contains("sandbox.rs"),
            "{text}"
        );
    }
}
