// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The log on the standard error, with a limit on the lines that clients can cause.

use std::{
    collections::HashMap,
    fmt,
    io::{self, IsTerminal},
    mem,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tracing::{Event, Level, Subscriber, callsite::Identifier};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields, MakeWriter,
        format::{Format, Writer},
    },
    registry::LookupSpan,
    util::SubscriberInitExt,
};

/// Number of lines that each call site may log in a period: less than 3 MB a day, wherever the log is kept.
const MOST: u32 = 20;
const PERIOD: Duration = Duration::from_secs(200);

/// Starts the log. `verbose` is the number of options `-v`.
pub(crate) fn start(verbose: u8) {
    to(io::stderr, io::stderr().is_terminal(), verbose).init();
}

fn to<W>(writer: W, ansi: bool, verbose: u8) -> impl Subscriber + Send + Sync
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let level = match verbose {
        0 => Level::WARN,
        1 => Level::INFO,
        _ => Level::DEBUG,
    };
    // With `-v`, the operator gets all lines, without a limit.
    let limits = (verbose == 0).then(Mutex::default);
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(ansi)
        .with_writer(writer)
        .event_format(Limited { format: Format::default(), limits })
        .finish()
}

/// Omits lines of a call site beyond its limit, and logs their number.
struct Limited {
    format: Format,
    limits: Option<Mutex<HashMap<Identifier, Limit>>>,
}

impl<S, N> FormatEvent<S, N> for Limited
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let left_out = match &self.limits {
            Some(limits) => {
                let now = Instant::now();
                let mut limits = limits.lock();
                let place = limits.entry(event.metadata().callsite());
                place.or_insert_with(|| Limit::new(now)).admit(now)
            }
            None => Some(0),
        };
        match left_out {
            Some(0) => self.format.format_event(context, writer, event),
            Some(count) => {
                self.format.format_event(context, writer.by_ref(), event)?;
                writeln!(writer, "    {count} similar messages before it were omitted")
            }
            None => Ok(()),
        }
    }
}

/// Rate limit of a call site.
struct Limit {
    /// Start of the current period.
    since: Instant,
    /// Number of lines logged since then.
    lines: u32,
    /// Number of lines omitted since the last logged line.
    left_out: u64,
}

impl Limit {
    fn new(since: Instant) -> Self {
        Self { since, lines: 0, left_out: 0 }
    }

    /// Returns the number of lines omitted before this line, or `None` if it is omitted, too.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.since) >= PERIOD {
            (self.since, self.lines) = (now, 0);
        }
        if self.lines == MOST {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use super::*;

    #[test]
    fn omitted_lines_are_counted() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        let mut at = |seconds| limit.admit(start + Duration::from_secs(seconds));
        for period in 0..3 {
            let omitted = if period == 0 { 0 } else { 1000 };
            assert_eq!(at(period * 200), Some(omitted));
            for _ in 1..MOST {
                assert_eq!(at(period * 200), Some(0));
            }
            for _ in 0..1000 {
                assert_eq!(at(period * 200 + 199), None);
            }
        }
    }

    /// Returns the log of a program that warns a thousand times at one call site, and once at another.
    fn logged(verbose: u8) -> String {
        let mut file = tempfile::tempfile().unwrap();
        let subscriber = to(file.try_clone().unwrap(), false, verbose);
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..1000 {
                tracing::warn!(number, "often");
            }
            tracing::warn!("once");
            tracing::info!("on request");
        });
        let mut log = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut log).unwrap();
        log
    }

    #[test]
    fn lines_of_a_call_site_are_limited() {
        let count = |log: &str, text: &str| log.lines().filter(|line| line.contains(text)).count();
        let log = logged(0);
        // If the host stalls for long, some more lines are allowed.
        let often = count(&log, "WARN efa_emu::log::tests: often");
        assert!((20..100).contains(&often), "{log}");
        assert_eq!(count(&log, "once"), 1);
        assert_eq!(log.lines().count(), often + 1);
        let log = logged(1);
        assert_eq!(count(&log, "often"), 1000);
        assert_eq!(count(&log, "on request"), 1);
    }
}
