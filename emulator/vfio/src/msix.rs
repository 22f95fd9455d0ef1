// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! MSI-X: the eventfds by which the VMM wants to be told of interrupts. The table itself is the VMM's affair.

use std::{
    fs::File,
    io::{self, Write},
};

use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE,
};

/// The function's interrupt vectors.
#[derive(Debug)]
pub(crate) struct Vectors {
    eventfds: Vec<Option<File>>,
}

impl Vectors {
    /// `count` vectors without an eventfd.
    pub(crate) fn new(count: u16) -> Self {
        Self {
            eventfds: (0..count).map(|_| None).collect(),
        }
    }

    /// Does what a SET_IRQS message for MSI-X asks for.
    ///
    /// QEMU sends one vector a message. No file descriptor for a vector means that it is disabled, and a trigger
    /// without data for no vector disables all.
    ///
    /// # Errors
    ///
    /// The message names vectors that do not exist or has file descriptors for other vectors than it names.
    pub(crate) fn set(
        &mut self,
        flags: u32,
        start: u32,
        count: u32,
        fds: Vec<File>,
    ) -> io::Result<()> {
        if flags & VFIO_IRQ_SET_ACTION_TRIGGER == 0 {
            // VFIO can't mask and unmask MSI-X vectors.
            return Err(invalid("MSI-X vectors can only be triggered"));
        }
        let range = start
            .checked_add(count)
            .and_then(|end| self.eventfds.get_mut(start as usize..end as usize))
            .ok_or_else(|| invalid("an MSI-X vector does not exist"))?;
        if flags & VFIO_IRQ_SET_DATA_EVENTFD != 0 {
            if fds.len() > range.len() {
                return Err(invalid("more eventfds than MSI-X vectors"));
            }
            let mut fds = fds.into_iter();
            range.fill_with(|| fds.next());
        } else if flags & VFIO_IRQ_SET_DATA_NONE != 0 && count == 0 {
            self.clear();
        } else {
            // A trigger without data signals the vectors.
            range.iter().flatten().for_each(signal);
        }
        Ok(())
    }

    /// Signals a vector; one that does not exist or is disabled signals nothing.
    pub(crate) fn signal(&self, vector: u16) {
        match self.eventfds.get(usize::from(vector)) {
            Some(Some(eventfd)) => signal(eventfd),
            _ => tracing::debug!(vector, "interrupt of a vector that is disabled"),
        }
    }

    /// Disables all.
    pub(crate) fn clear(&mut self) {
        self.eventfds.fill_with(|| None);
    }
}

fn signal(mut eventfd: &File) {
    if let Err(error) = eventfd.write_all(&1u64.to_ne_bytes()) {
        tracing::warn!(%error, "cannot signal an interrupt");
    }
}

fn invalid(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::fd::OwnedFd};

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    const SET: u32 = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
    const TRIGGER: u32 = VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER;

    fn event() -> (File, File) {
        let event = File::from(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        (event.try_clone().unwrap(), event)
    }

    fn signals(mut event: &File) -> u64 {
        let mut count = [0; 8];
        event
            .read_exact(&mut count)
            .map_or(0, |()| u64::from_ne_bytes(count))
    }

    #[test]
    fn vectors_are_set_one_by_one() {
        let mut vectors = Vectors::new(3);
        let (first, ours) = event();
        vectors.set(SET, 0, 1, vec![ours]).unwrap();
        let (last, ours) = event();
        vectors.set(SET, 2, 1, vec![ours]).unwrap();
        vectors.signal(0);
        vectors.signal(1);
        vectors.signal(2);
        vectors.signal(2);
        vectors.signal(3);
        assert_eq!((signals(&first), signals(&last)), (1, 2));
    }

    #[test]
    fn no_file_descriptor_disables() {
        let mut vectors = Vectors::new(2);
        let (first, ours_first) = event();
        let (second, ours_second) = event();
        vectors
            .set(SET, 0, 2, vec![ours_first, ours_second])
            .unwrap();
        vectors.set(SET, 0, 1, Vec::new()).unwrap();
        vectors.signal(0);
        vectors.signal(1);
        assert_eq!((signals(&first), signals(&second)), (0, 1));
        vectors.set(TRIGGER, 0, 0, Vec::new()).unwrap();
        vectors.signal(1);
        assert_eq!(signals(&second), 0);
    }

    #[test]
    fn a_trigger_without_data_signals() {
        let mut vectors = Vectors::new(2);
        let (event, ours) = event();
        vectors.set(SET, 1, 1, vec![ours]).unwrap();
        vectors.set(TRIGGER, 0, 2, Vec::new()).unwrap();
        assert_eq!(signals(&event), 1);
    }

    #[test]
    fn bad_messages_are_refused() {
        let mut vectors = Vectors::new(2);
        let fd = || File::from(OwnedFd::from(event().1));
        assert!(vectors.set(SET, 2, 1, vec![fd()]).is_err());
        assert!(vectors.set(SET, 1, 2, vec![fd(), fd()]).is_err());
        assert!(vectors.set(SET, u32::MAX, 2, vec![fd()]).is_err());
        assert!(vectors.set(SET, 0, 1, vec![fd(), fd()]).is_err());
        assert!(
            vectors
                .set(VFIO_IRQ_SET_DATA_EVENTFD, 0, 1, vec![fd()])
                .is_err()
        );
    }
}
