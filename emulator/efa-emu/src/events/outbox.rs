// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Events that wait for the thread that writes them.
//!
//! The caller holds the lock of a device, so it never waits here. If the thread that writes is behind, because a pipe's reader or
//! the disk is slow, events are dropped and counted.

use std::{
    io,
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

/// Number of files.
const FILES: usize = 2;

/// An event of a device, and the time since the start.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) device: usize,
    pub(super) at: Duration,
    pub(super) what: What,
    /// Whether each file gets it.
    wanted: [bool; FILES],
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
pub(super) trait Encoder: Send {
    /// Writes an event.
    fn event(&mut self, event: &Event) -> io::Result<()>;

    /// Writes that so many events of a device, which would have followed the last one, are lost.
    fn lost(&mut self, device: usize, at: Duration, count: u64) -> io::Result<()>;

    fn flush(&mut self) -> io::Result<()>;
}

/// A file, with its name for messages.
pub(super) type File = (&'static str, Box<dyn Encoder>);

pub(super) type Files = [Option<File>; FILES];

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

/// Waiting bytes of a device, and the number of events that were lost since, by file.
#[derive(Debug, Default)]
struct Part {
    bytes: usize,
    lost: Option<[u64; FILES]>,
}

impl Outbox {
    /// Returns an outbox, and the work of its thread.
    pub(super) fn new(devices: usize, start: Instant, files: Files) -> (Self, Work) {
        let (sender, messages) = mpsc::channel();
        let parts: Arc<[_]> = (0..devices).map(|_| Mutex::default()).collect();
        let outbox = Self {
            start,
            sender,
            devices: Arc::clone(&parts),
            share: WAITING_BYTES / devices.max(1),
        };
        let work = move || write(&messages, &parts, files);
        (outbox, Box::new(work))
    }

    /// Adds an event of a device for some files, unless the share is used up.
    pub(super) fn push(&self, device: usize, wanted: [bool; FILES], what: What) {
        let Some(part) = self.devices.get(device) else {
            return;
        };
        let event = Event {
            device,
            at: self.start.elapsed(),
            what,
            wanted,
        };
        let size = event.size();
        let mut part = part.lock();
        // Events after a lost one are lost, too, so that the thread can report where they are missing.
        if part.lost.is_some() || part.bytes > 0 && part.bytes + size > self.share {
            let lost = part.lost.get_or_insert_default();
            for (lost, wanted) in lost.iter_mut().zip(wanted) {
                *lost += u64::from(wanted);
            }
        } else if self.sender.send(Ok(event)).is_ok() {
            part.bytes += size;
        }
    }

    /// Has all pending events written, and accepts no more. Waits no longer than `most`.
    pub(super) fn finish(&self, most: Duration) {
        let (end, written) = mpsc::channel();
        let _ = self.sender.send(Err(end));
        let _ = written.recv_timeout(most);
    }
}

/// Writes all events until the end, or until no file can be written.
fn write(messages: &Receiver<Message>, devices: &[Mutex<Part>], mut files: Files) {
    loop {
        let message = match messages.try_recv() {
            Ok(message) => message,
            Err(_) => {
                each(&mut files, |_, encoder| encoder.flush());
                thread::sleep(REST);
                match messages.recv() {
                    Ok(message) => message,
                    Err(_) => return,
                }
            }
        };
        let event = match message {
            Ok(event) => event,
            Err(_end) => {
                each(&mut files, |_, encoder| encoder.flush());
                return;
            }
        };
        each(&mut files, |file, encoder| match event.wanted[file] {
            true => encoder.event(&event),
            false => Ok(()),
        });
        let mut part = devices[event.device].lock();
        part.bytes -= event.size();
        let lost = match part.bytes {
            0 => part.lost.take().unwrap_or_default(),
            _ => [0; FILES],
        };
        drop(part);
        each(&mut files, |file, encoder| match lost[file] {
            0 => Ok(()),
            count => encoder.lost(event.device, event.at, count),
        });
        if files.iter().all(Option::is_none) {
            return;
        }
    }
}

/// Calls `write` for each file, and closes those that can't be written.
fn each(files: &mut Files, mut write: impl FnMut(usize, &mut dyn Encoder) -> io::Result<()>) {
    for (file, place) in files.iter_mut().enumerate() {
        let Some((what, encoder)) = place else {
            continue;
        };
        if let Err(error) = write(file, &mut **encoder) {
            tracing::error!(%error, "cannot write the {what}, which ends here: restart the program with another file");
            *place = None;
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

    /// A file gets the number of the events that it would have got, although another one can't be written.
    #[test]
    fn lost_events_are_counted_for_each_file() {
        let (sender, written) = mpsc::channel();
        let encoders = [mpsc::channel().0, sender];
        let encoders = encoders.map(|sender| Some(("test", Box::new(sender) as Box<dyn Encoder>)));
        let (outbox, work) = Outbox::new(2, Instant::now(), encoders);
        let push = |device, wanted| {
            let bytes = vec![0; WAITING_BYTES / 4];
            let record = Record { bytes, length: 0 };
            outbox.push(device, wanted, What::Packet(true, record));
        };
        push(1, [true, false]);
        push(1, [true, false]);
        for _ in 0..3 {
            push(1, [false, true]);
        }
        // The other device has its own share.
        push(0, [true, true]);
        // No thread writes.
        outbox.finish(Duration::from_millis(1));
        work();
        assert!(written.iter().eq([(1_usize, 3_u64), (0, 0)]));
        // The thread is gone.
        push(1, [true, true]);
        outbox.finish(Duration::MAX);
    }
}
