// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Runs [lives](driver::life) on all CPUs, and prints each one that fails.
//!
//! ```text
//! lives seeds FIRST COUNT         lives of COUNT seeds
//! lives schedules FIRST SECONDS   lives of seeds for SECONDS
//! lives inputs FILE               lives of a fuzzer's inputs, one line of hexadecimal digits each
//! ```
//!
//! `SIM_LOG=1` in the environment prints all messages of the kernel and of the device.

use std::{
    cell::RefCell,
    env, fs, panic,
    process::{exit, ExitCode},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{channel, Sender},
        Arc,
    },
    thread,
    time::{Duration, Instant},
};

use driver::life;

/// Number of failures after which the program ends.
const MOST_FAILURES: usize = 20;

const USAGE: &str = "usage: lives seeds FIRST COUNT | schedules FIRST SECONDS | inputs FILE";

/// The lives to run, as named on the command line.
enum Lives {
    Seeds { first: u64, count: u64 },
    Schedules { first: u64, end: Instant },
    Inputs(Vec<String>),
}

impl Lives {
    fn of(arguments: &[String]) -> Option<Self> {
        let [what, arguments @ ..] = arguments else {
            return None;
        };
        let number = |text: &String| text.parse().ok();
        Some(match (what.as_str(), arguments) {
            ("seeds", [first, count]) => Self::Seeds {
                first: number(first)?,
                count: number(count)?,
            },
            ("schedules", [first, seconds]) => Self::Schedules {
                first: number(first)?,
                end: Instant::now() + Duration::from_secs(number(seconds)?),
            },
            ("inputs", [file]) => {
                let text = fs::read_to_string(file).unwrap_or_else(|error| {
                    eprintln!("{file}: {error}");
                    exit(2)
                });
                Self::Inputs(text.lines().map(str::to_owned).collect())
            }
            _ => return None,
        })
    }

    /// Runs the life with an index. Returns false if no lives are left to run.
    fn run(&self, number: u64) -> bool {
        match self {
            Self::Seeds { count, .. } if number >= *count => return false,
            Self::Schedules { end, .. } if Instant::now() >= *end => return false,
            Self::Seeds { first, .. } | Self::Schedules { first, .. } => {
                let seed = first + number;
                name(format!("seed {seed}"));
                life::schedule(seed);
            }
            Self::Inputs(lines) => {
                let Some(line) = lines.get(number as usize) else {
                    return false;
                };
                name(format!("input {line}"));
                life::fuzz(&bytes(line));
            }
        }
        true
    }
}

fn bytes(line: &str) -> Vec<u8> {
    let byte = |digits| {
        let digits = std::str::from_utf8(digits).ok()?;
        u8::from_str_radix(digits, 16).ok()
    };
    let bytes: Option<_> = line.as_bytes().chunks(2).map(byte).collect();
    bytes.expect("pairs of hexadecimal digits")
}

thread_local! {
    /// Name of the life that this thread runs, for messages.
    static NAME: RefCell<String> = const { RefCell::new(String::new()) };
}

fn name(name: String) {
    NAME.with(|slot| *slot.borrow_mut() = name);
}

/// Reports panics to `to`, and parks the thread: unwinding would run drops in a stopped machine.
fn report_failures(to: Sender<Option<String>>) {
    panic::set_hook(Box::new(move |info| {
        let name = NAME.with(|name| name.borrow().clone());
        let _ = to.send(Some(format!("{name}: {info}")));
        loop {
            thread::park();
        }
    }));
}

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let Some(lives) = Lives::of(&arguments) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let (lives, next, start) = (Arc::new(lives), Arc::new(AtomicU64::new(0)), Instant::now());
    let (sender, receiver) = channel();
    report_failures(sender.clone());
    let start_worker = || {
        let (lives, next, sender) = (lives.clone(), next.clone(), sender.clone());
        thread::spawn(move || {
            while lives.run(next.fetch_add(1, Ordering::Relaxed)) {}
            let _ = sender.send(None);
        })
    };

    let workers = thread::available_parallelism().map_or(1, usize::from);
    (0..workers).for_each(|_| drop(start_worker()));
    let (mut working, mut failures) = (workers, 0);
    while working != 0 && failures < MOST_FAILURES {
        match receiver.recv().expect("a sender is here") {
            None => working -= 1,
            Some(failure) => {
                println!("failed: {failure}");
                failures += 1;
                start_worker();
            }
        }
    }
    // Each worker has taken one index beyond the last life.
    let count = next.load(Ordering::Relaxed) - workers as u64;
    let each_second = count as f64 / start.elapsed().as_secs_f64();
    println!("{count} lives, {each_second:.0} per second, {failures} failed");
    ExitCode::from(u8::from(failures != 0))
}
