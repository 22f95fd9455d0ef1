// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! File descriptors and address space: the limits of the process, and the share of each device.
//!
//! A message ends its connection if this process has no room for its descriptors. So the limits of all devices and clients
//! together must not exceed that of the process. Otherwise, one VMM could disconnect others from their devices.

use efa_vfio::{MAX_FILES, descriptors};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{args::Args, control, metrics, peers};

/// Descriptors of the program itself: standard streams, signals, output files, and connections that it refuses.
const OWN: usize = 32;

/// Minimum number of memory files that a guest needs.
const FEWEST: usize = 4;

/// Bytes of guests' memory that this process maps at most: half of the address space of x86-64.
const MAPPED: u64 = 64 << 40;

/// Checks that this process can map all memory that VMMs may share. Without address space, it could allocate no memory either.
///
/// # Errors
///
/// There may be too much.
pub(crate) fn check_memory(args: &Args) -> Result<(), String> {
    let limit = getrlimit(Resource::As).current.unwrap_or(MAPPED);
    let limit = limit.min(MAPPED);
    let all = args.devices().iter().fold(0, |all: u64, spec| all.saturating_add(spec.memory()));
    if all <= limit {
        return Ok(());
    }
    Err(format!(
        "the guests of all devices may share {} GiB, and this process may map {}: \
         set memory=SIZE of each device to a lower value",
        all >> 30,
        limit >> 30
    ))
}

/// Raises the limit of this process to the hard limit. Returns the resulting limit.
pub(crate) fn raise() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, ..limit };
    let current = match setrlimit(Resource::Nofile, most) {
        Ok(()) => most.current,
        // The current limit may be enough.
        Err(_) => limit.current,
    };
    let current = current.and_then(|current| usize::try_from(current).ok());
    current.unwrap_or(usize::MAX)
}

/// Returns the number of guest memory files that each device may have, if `limit` descriptors serve the whole command line.
///
/// # Errors
///
/// The limit is too low.
pub(crate) fn files(limit: usize, args: &Args) -> Result<usize, String> {
    let specs = args.devices();
    let clients = [
        (!args.control.is_empty(), args.control.len() * (1 + control::MAX_CONNECTIONS)),
        (args.metrics.is_some(), 1 + metrics::MAX_CONNECTIONS),
        // A link has one descriptor for reads and another for writes.
        (args.listen.is_some(), 1 + 2 * peers::MAX_CONNECTIONS),
    ];
    let clients = clients.iter().filter(|(is_enabled, _)| *is_enabled);
    let clients = clients.map(|(_, most)| most).sum::<usize>() + 2 * args.join.len();
    let devices = specs.iter().enumerate();
    let devices = devices.map(|(index, spec)| descriptors(spec.config(index).vectors));
    let fixed = OWN + clients + devices.sum::<usize>();
    let count = specs.len().max(1);
    let files = limit.saturating_sub(fixed) / count;
    if files < FEWEST {
        let needed = fixed + count * FEWEST;
        return Err(format!(
            "{count} devices may take {needed} file descriptors, and this process may have {limit}: raise the hard limit \
             (ulimit -Hn, or LimitNOFILE= of a unit), or emulate fewer devices"
        ));
    }
    Ok(files.min(MAX_FILES))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn devices_share_the_descriptors() {
        let of = |limit, options: &str| {
            let options = ["efa-emu"].into_iter().chain(options.split(' '));
            files(limit, &Args::parse_from(options))
        };
        for limit in [1024, usize::MAX] {
            assert_eq!(of(limit, "--device socket=a"), Ok(MAX_FILES));
        }
        assert_eq!(of(65536, "--instance p5.48xlarge,socket=a"), Ok(MAX_FILES));
        let few = of(4500, "--instance p5.48xlarge,socket=a").unwrap();
        // The whole limit is used, and not exceeded.
        let used = |files| OWN + 32 * (descriptors(33) + files);
        assert!(used(few) <= 4500 && used(few + 1) > 4500, "{few}");
        let clients = "--control b --metrics c --listen d";
        let less = of(4500, &format!("--instance p5.48xlarge,socket=a {clients}"));
        assert!(less.unwrap() < few);
        let vectors = of(4500, "--instance p5.48xlarge,socket=a,msix=1");
        assert_eq!(vectors, Ok(few + 32));
        let why = of(1024, "--instance p5.48xlarge,socket=a").unwrap_err();
        let needed = OWN + 32 * (descriptors(33) + FEWEST);
        let expected = format!("32 devices may take {needed} file descriptors, and this process may have 1024: raise");
        assert!(why.starts_with(&expected), "{why}");
    }

    #[test]
    fn devices_share_the_address_space() {
        let check = |spec: &str| check_memory(&Args::parse_from(["efa-emu", "--instance", spec]));
        check("p5.48xlarge,socket=a").unwrap();
        check("p5.48xlarge,socket=a,memory=2048G").unwrap();
        let why = check("p5.48xlarge,socket=a,memory=4096G").unwrap_err();
        assert!(why.contains("may share 131072 GiB, and this process may map 65536: set"), "{why}");
        check("p5.48xlarge,socket=a,memory=17179869183G").unwrap_err();
    }
}
