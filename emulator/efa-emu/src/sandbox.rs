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
//! | `device`, and one per VMM | accepts, exchanges messages with descriptors, maps files, signals eventfds, and all of `fabric` |
//! | `fabric` | reads and writes guest memory that is not mapped |
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
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// Whether the program is sandboxed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// The program fails if the kernel lacks a part of the sandbox that is required.
    On,
    /// The program applies as much of the sandbox as the kernel supports.
    #[default]
    Auto,
    /// The program has no sandbox.
    Off,
}

/// Resources that the sandboxed program has to access by path or port.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    /// Sockets, which the program removes when it ends.
    pub(crate) sockets: Vec<PathBuf>,
    /// TCP ports to which the program connects.
    pub(crate) ports: Vec<u16>,
}

/// What Landlock restricts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Landlock {
    None,
    /// Only what an older kernel can.
    Part,
    /// All that [`Mode::On`] requires.
    Required,
    Whole,
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
    let landlock =
        restrict_files(is_needed, needs).or_else(|error| failed("Landlock", &error).map(|()| Landlock::None))?;
    let seccomp =
        restrict_calls(landlock, needs).map(|()| true).or_else(|error| failed("seccomp", &error).map(|()| false))?;
    let by_landlock = match landlock {
        Landlock::Whole => "files, ports and signals",
        Landlock::Required => "files and ports",
        Landlock::Part => "some rules",
        Landlock::None => "nothing",
    };
    let by_seccomp = if seccomp { "system calls" } else { "nothing" };
    let applied = format!("sandboxed: {by_landlock} by Landlock, {by_seccomp} by seccomp");
    if seccomp && landlock >= Landlock::Required {
        tracing::info!("{applied}");
    } else {
        tracing::warn!("{applied}");
    }
    Ok(())
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

/// A list of system calls.
macro_rules! calls {
    ($($call:ident)*) => { &[$(libc::$call),*] };
}

/// System calls of the threading library and the allocator, and those without effects on anything else. SYS_clone3 is refused, see
/// `no_clone3`.
const OF_THREADS: &[i64] = calls! {
    SYS_brk SYS_clock_getres SYS_clock_gettime SYS_clock_nanosleep SYS_clone3 SYS_exit
    SYS_exit_group SYS_futex SYS_getpid SYS_getrandom SYS_gettid SYS_gettimeofday SYS_madvise
    SYS_membarrier SYS_mremap SYS_munmap SYS_nanosleep SYS_restart_syscall SYS_rseq
    SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_sched_getaffinity SYS_sched_yield
    SYS_set_robust_list SYS_set_tid_address SYS_sigaltstack SYS_sysinfo
};

/// System calls on descriptors that the program has.
const OF_DESCRIPTORS: &[i64] = calls! {
    SYS_accept4 SYS_close SYS_eventfd2 SYS_fdatasync SYS_fstat SYS_fstatfs SYS_ftruncate
    SYS_getpeername SYS_getsockname SYS_getsockopt SYS_io_destroy SYS_io_getevents SYS_io_submit
    SYS_ioctl SYS_lseek SYS_memfd_create SYS_ppoll SYS_pread64 SYS_preadv SYS_pwrite64
    SYS_pwritev SYS_read SYS_readv SYS_recvfrom SYS_recvmsg SYS_sendmsg SYS_sendto
    SYS_setsockopt SYS_shutdown SYS_unlinkat SYS_write SYS_writev
};

/// System calls that libraries may try but do not depend on. They fail with EACCES, and the program continues.
const REFUSED: &[i64] = calls! { SYS_faccessat SYS_getcwd SYS_readlinkat SYS_uname };

/// System calls that only x86-64 has, for the same purposes.
#[cfg(target_arch = "x86_64")]
mod old {
    pub(super) const ALLOWED: &[i64] = calls! { SYS_poll SYS_unlink };
    pub(super) const REFUSED: &[i64] = calls! { SYS_access SYS_open SYS_readlink SYS_stat };
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

fn program(rules: Rules, otherwise: SeccompAction, action: SeccompAction) -> Result<BpfProgram, BackendError> {
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
    let commands =
        [libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_GETFL, libc::F_SETFL, libc::F_ADD_SEALS, libc::F_GET_SEALS];
    let commands = commands.map(|command| equal(1, command.unsigned_abs()));
    let commands = commands.into_iter().collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_fcntl, commands);
    let name = equal(0, libc::PR_SET_NAME.unsigned_abs())?;
    rules.insert(libc::SYS_prctl, vec![name]);
    // For abort(), and for accesses to pages that a VMM may have freed.
    for call in [libc::SYS_tgkill, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev] {
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
fn condition(argument: u8, operator: SeccompCmpOp, value: impl Into<u64>) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value.into())
}

#[cfg(test)]
mod tests;
