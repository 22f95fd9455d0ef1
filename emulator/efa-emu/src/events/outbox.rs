// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Events that wait for the thread that writes them to a file.
//!
//! The caller holds the lock of a device, so it never waits here. If the thread that writes is behind, because a pipe's reader or
//! the disk is slow, events are dropped and counted.

use std::{
    io, mem,
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use efa_fabric::Record;
use efa_model::TraceEvent;
use parking_lot::Mutex;

/// Limit on waiting events in bytes, over all devices.
const WAITING_BYTES: usize = 16 << 20;

/// Pause of the thread when it has written all events. It needs no wake-up for events that are queued meanwhile.
const REST: Duration = Duration::from_millis(1);

/// An event of a device, and the time since the start.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) device: usize,
    pub(super) at: Duration,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    /// Whether a packet has left the device or arrived there, and its record.
    Packet(bool, Record),
    Operation(TraceEvent),
}

impl Event {
    fn size(&self) -> usize {
        size_of::<Self>()
            + match &self.what {
                What::Packet(_, record) => record.bytes.len(),
                What::Operation(operation) => operation.heap_size(),
            }
    }
}

/// A file of events.
pub(super) trait Encoder: Send + 'static {
    /// Writes an event.
    fn event(&mut self, event: &Event) -> io::Result<()>;

    /// Writes that so many events of a device, which would have followed the last one, are lost.
    fn lost(&mut self, device: usize, at: Duration, count: u64) -> io::Result<()>;

    fn flush(&mut self) -> io::Result<()>;
}

/// Work of the writer thread, which starts in the sandbox, where it can open no file.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// An event, or the end. Its sender is dropped when all is written.
type Message = Result<Event, Sender<()>>;

/// Events that wait to be written. Each device has an equal share of the memory.
#[derive(Debug)]
pub(super) struct Outbox {
    start: Instant,
    sender: Sender<Message>,
    devices: Arc<[Mutex<Part>]>,
    /// Limit on waiting bytes of each device.
    share: usize,
}

/// Waiting bytes of a device, and the number of events that were lost since.
#[derive(Debug, Default)]
struct Part {
    bytes: usize,
    lost: u64,
}

impl Outbox {
    /// Returns an outbox for a file, whose name is for messages, and the work of its thread.
    pub(super) fn new(name: &'static str, devices: usize, start: Instant, mut encoder: impl Encoder) -> (Self, Work) {
        let (sender, messages) = mpsc::channel();
        let parts: Arc<[_]> = (0..devices).map(|_| Mutex::default()).collect();
        let outbox = Self { start, sender, devices: Arc::clone(&parts), share: WAITING_BYTES / devices.max(1) };
        let work = move || {
            if let Err(error) = write(&messages, &parts, &mut encoder) {
                tracing::error!(%error, "cannot write the {name}, which ends here: restart the program with another file");
            }
        };
        (outbox, Box::new(work))
    }

    /// Adds an event of a device, unless the share is used up.
    pub(super) fn push(&self, device: usize, what: What) {
        let Some(part) = self.devices.get(device) else {
            return;
        };
        let event = Event { device, at: self.start.elapsed(), what };
        let size = event.size();
        let mut part = part.lock();
        // Events after a lost one are lost, too, so that the thread can report where they are missing.
        if part.lost > 0 || part.bytes > 0 && part.bytes + size > self.share {
            part.lost += 1;
        } else if self.sender.send(Ok(event)).is_ok() {
            part.bytes += size;
        }
    }

    /// Has all pending events written, and accepts no more. Waits no longer than until `end`.
    pub(super) fn finish(&self, end: Instant) {
        let (last, written) = mpsc::channel();
        let _ = self.sender.send(Err(last));
        let _ = written.recv_timeout(end.saturating_duration_since(Instant::now()));
    }
}

/// Writes all events until the end.
fn write(messages: &Receiver<Message>, devices: &[Mutex<Part>], encoder: &mut impl Encoder) -> io::Result<()> {
    loop {
        let message = match messages.try_recv() {
            Ok(message) => message,
            Err(_) => {
                encoder.flush()?;
                thread::sleep(REST);
                match messages.recv() {
                    Ok(message) => message,
                    Err(_) => return Ok(()),
                }
            }
        };
        let event = match message {
            Ok(event) => event,
            Err(_end) => return encoder.flush(),
        };
        encoder.event(&event)?;
        let mut part = devices[event.device].lock();
        part.bytes -= event.size();
        let lost = match part.bytes {
            0 => mem::take(&mut part.lost),
            _ => 0,
        };
        drop(part);
        if lost > 0 {
            encoder.lost(event.device, event.at, lost)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends the device of each event, and the number of lost events, until its receiver is gone.
    impl Encoder for Sender<(usize, u64)> {
        fn event(&mut self, event: &Event) -> io::Result<()> {
            self.lost(event.device, event.at, 0)
        }

        fn lost(&mut self, device: usize, _: Duration, count: u64) -> io::Result<()> {
            let sent = self.send((device, count));
            sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Each device has its own share. Without a thread, nobody waits.
    #[test]
    fn lost_events_are_counted() {
        let (sender, written) = mpsc::channel();
        let (outbox, work) = Outbox::new("test", 2, Instant::now(), sender);
        let push = |device| {
            let bytes = vec![0; WAITING_BYTES / 4];
            outbox.push(device, What::Packet(true, Record { bytes, length: 0 }));
        };
        for device in [1, 1, 1, 1, 0] {
            push(device);
        }
        outbox.finish(Instant::now());
        work();
        assert!(written.iter().eq([(1_usize, 0_u64), (1, 3), (0, 0)]));
        // The thread is gone.
        push(1);
        outbox.finish(Instant::now());
    }
}
