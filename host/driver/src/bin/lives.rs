// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Lives whole lives of a device, on each CPU one at a time, and prints those that fail. See [`driver::life`].
//!
//! ```text
//! lives seed SEED                the life of a seed
//! lives schedules SEED SECONDS   the lives of that seed and of those after it, for so long
//! lives replay FILE...           the lives that the bytes of files choose
//! ```
//!
//! With `SIM_LOG=1` in the environment, all messages of the kernel and of the device are printed.

use std::{
    cell::RefCell,
    env, fs, panic,
    process::ExitCode,
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{channel, Sender},
        Arc,
    },
    thread,
    time::{Duration, Instant},
};

use driver::life;

/// So many lives may fail before the program ends.
const MOST_FAILURES: usize = 20;

const USAGE: &str = "usage: lives seed SEED | schedules SEED SECONDS | replay FILE...";

/// The lives that are asked for.
enum Lives {
    Seeds { first: u64, end: Option<Instant> },
    Files(Vec<String>),
}

impl Lives {
    fn of(arguments: &[String]) -> Option<Self> {
        let number = |text: &String| text.parse().ok();
        Some(match arguments {
            [what, seed] if what == "seed" => Self::Seeds {
                first: number(seed)?,
                end: None,
            },
            [what, seed, seconds] if what == "schedules" => Self::Seeds {
                first: number(seed)?,
                end: Some(Instant::now() + Duration::from_secs(number(seconds)?)),
            },
            [what, files @ ..] if what == "replay" => Self::Files(files.to_vec()),
            _ => return None,
        })
    }

    /// Lives one of them. Returns false if there is none of this number.
    fn live(&self, number: u64) -> bool {
        match self {
            Self::Seeds { first, end } => {
                if end.map_or(number != 0, |end| Instant::now() >= end) {
                    return false;
                }
                let seed = first + number;
                name(format!("seed {seed}"));
                life::schedule(seed);
            }
            Self::Files(files) => {
                let Some(file) = files.get(number as usize) else {
                    return false;
                };
                name(file.clone());
                let data = fs::read(file).unwrap_or_else(|error| panic!("{error}"));
                life::fuzz(&data);
            }
        }
        true
    }
}

thread_local! {
    /// The life of this thread.
    static NAME: RefCell<String> = const { RefCell::new(String::new()) };
}

fn name(name: String) {
    NAME.with(|slot| *slot.borrow_mut() = name);
}

/// Has a thread stop where it fails. Its stack is not unwound, as its machine has stopped in the middle of something.
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
            while lives.live(next.fetch_add(1, Ordering::Relaxed)) {}
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
    // Each worker has asked for one that there is not.
    let count = next.load(Ordering::Relaxed) - workers as u64;
    let each_second = count as f64 / start.elapsed().as_secs_f64();
    println!("{count} lives, {each_second:.0} per second, {failures} failed");
    ExitCode::from(u8::from(failures != 0))
}
