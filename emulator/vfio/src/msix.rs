// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! MSI-X: the eventfds that signal interrupts to the VMM. The VMM emulates the table itself.
//!
//! A write to an eventfd with the maximum count blocks until the next read, unless the open file is non-blocking. The VMM shares
//! the open file. So it can fill the count and clear the flag at any time, also between a check and the write. A signal by the
//! kernel itself, as for interrupts of KVM and VFIO, never blocks: it adds one, or leaves the count as it is. A program gets the
//! kernel to do that by asynchronous I/O, the completion of which signals an eventfd.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::{
    fs::{FileType, MemfdFlags, fstat, memfd_create},
    io::Errno,
};
use vfio_user::{Action, IrqData, IrqSet};
use vmm_sys_util::aio::{IOCB_CMD_PREAD, IOCB_FLAG_RESFD, IoContext, IoControlBlock, IoEvent};

/// Maximum number of completed reads that the kernel keeps until they are fetched.
const MAX_ENDED: usize = 64;

/// The function's interrupt vectors.
#[derive(Debug)]
pub(crate) struct Vectors {
    eventfds: Vec<Option<OwnedFd>>,
    signaller: Signaller,
}

impl Vectors {
    /// Creates `count` vectors without an eventfd.
    ///
    /// # Errors
    ///
    /// See [`Signaller::new`].
    pub(crate) fn new(count: u16) -> io::Result<Self> {
        Ok(Self {
            eventfds: (0..count).map(|_| None).collect(),
            signaller: Signaller::new()?,
        })
    }

    /// Carries out a SET_IRQS message for MSI-X. The caller must have passed its data to [`check`].
    ///
    /// QEMU sends one vector per message. A vector without a file descriptor is disabled. A trigger without data for
    /// no vector disables all.
    ///
    /// # Errors
    ///
    /// The message names vectors that do not exist, or an action that MSI-X vectors do not support.
    pub(crate) fn set(&mut self, set: IrqSet<'_>) -> io::Result<()> {
        if set.action != Action::Trigger {
            // VFIO can't mask and unmask MSI-X vectors.
            return Err(Errno::OPNOTSUPP.into());
        }
        let range = set
            .start
            .checked_add(set.count)
            .and_then(|end| self.eventfds.get_mut(set.start as usize..end as usize))
            .ok_or(Errno::INVAL)?;
        match set.data {
            IrqData::Eventfds(fds) => {
                let mut fds = fds.into_iter();
                range.fill_with(|| fds.next());
            }
            IrqData::None if set.count == 0 => self.clear(),
            // A trigger without eventfds signals the vectors.
            IrqData::None => {
                let eventfds = range.iter().flatten();
                eventfds.for_each(|eventfd| self.signaller.signal(eventfd));
            }
            IrqData::Bools(bools) => {
                let chosen = range.iter().zip(bools).filter(|(_, is)| **is != 0);
                chosen
                    .filter_map(|(eventfd, _)| eventfd.as_ref())
                    .for_each(|eventfd| self.signaller.signal(eventfd));
            }
        }
        Ok(())
    }

    /// Signals a vector, if it exists and is enabled.
    pub(crate) fn signal(&mut self, vector: u16) {
        match self.eventfds.get(usize::from(vector)) {
            Some(Some(eventfd)) => self.signaller.signal(eventfd),
            _ => tracing::debug!(vector, "interrupt of a disabled vector"),
        }
    }

    /// Disables all vectors.
    pub(crate) fn clear(&mut self) {
        self.eventfds.fill_with(|| None);
    }
}

/// Checks whether file descriptors can be eventfds. The server of a FUSE or network file can block this for ever, so the caller
/// must not hold a lock.
///
/// # Errors
///
/// A descriptor is not an eventfd.
pub(crate) fn check(data: &IrqData<'_>) -> io::Result<()> {
    let IrqData::Eventfds(fds) = data else {
        return Ok(());
    };
    for fd in fds {
        // The mode of an eventfd has none of the types of files.
        let mode = fstat(fd)?.st_mode;
        if FileType::from_raw_mode(mode) != FileType::Unknown {
            return Err(Errno::INVAL.into());
        }
    }
    Ok(())
}

/// Signals eventfds through the kernel.
#[derive(Debug)]
struct Signaller {
    context: IoContext,
    /// An empty file: a read of it has completed when its submission returns.
    empty: File,
    /// Number of reads that have completed since they were last fetched.
    ended: usize,
}

impl Signaller {
    /// # Errors
    ///
    /// The kernel has no asynchronous I/O, or other programs have used up its limit (`fs.aio-max-nr`).
    fn new() -> io::Result<Self> {
        // CAST: it is a small constant.
        let context = IoContext::new(MAX_ENDED as u32)?;
        let empty = memfd_create("efa-empty", MemfdFlags::CLOEXEC)?.into();
        Ok(Self {
            context,
            empty,
            ended: 0,
        })
    }

    /// Signals an eventfd. This never blocks, whatever other processes do with the eventfd.
    fn signal(&mut self, eventfd: &OwnedFd) {
        if self.ended == MAX_ENDED / 2 {
            self.forget_ended();
        }
        let result = self.submit(eventfd).or_else(|error| {
            if error.kind() != io::ErrorKind::WouldBlock {
                return Err(error);
            }
            self.forget_ended();
            self.submit(eventfd)
        });
        match result {
            Ok(_) => self.ended += 1,
            Err(error) => tracing::debug!(%error, "cannot signal an interrupt"),
        }
    }

    /// Submits a read of the empty file, the completion of which signals the eventfd.
    fn submit(&self, eventfd: &OwnedFd) -> io::Result<usize> {
        // CAST: descriptors are not negative, and the kernel's constants fit.
        let descriptor = |fd: &dyn AsRawFd| fd.as_raw_fd() as u32;
        self.context.submit(&[&mut IoControlBlock {
            aio_lio_opcode: IOCB_CMD_PREAD as u16,
            aio_fildes: descriptor(&self.empty),
            aio_flags: IOCB_FLAG_RESFD,
            aio_resfd: descriptor(eventfd),
            ..IoControlBlock::default()
        }])
    }

    /// Fetches and discards completed reads, to make space for more.
    fn forget_ended(&mut self) {
        let mut events = [IoEvent::default(); MAX_ENDED];
        let mut no_time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let asked = self.context.get_events(0, &mut events, Some(&mut no_time));
        if let Err(error) = asked {
            tracing::debug!(%error, "cannot fetch completed reads");
        }
        self.ended = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        sync::mpsc,
        thread,
    };

    use efa_testing::wait::patience;
    use rustix::{
        event::{EventfdFlags, eventfd},
        fs::{OFlags, fcntl_setfl},
        pipe::pipe,
    };

    use super::*;

    fn event() -> (File, OwnedFd) {
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        (event.try_clone().unwrap().into(), event)
    }

    fn signals(mut event: &File) -> u64 {
        let mut count = [0; 8];
        event
            .read_exact(&mut count)
            .map_or(0, |()| u64::from_ne_bytes(count))
    }

    fn set(vectors: &mut Vectors, start: u32, count: u32, data: IrqData<'_>) -> io::Result<()> {
        check(&data)?;
        vectors.set(IrqSet {
            index: 2,
            start,
            count,
            action: Action::Trigger,
            data,
        })
    }

    #[test]
    fn vectors_are_set_one_by_one() {
        let mut vectors = Vectors::new(3).unwrap();
        let (first, ours) = event();
        set(&mut vectors, 0, 1, IrqData::Eventfds(vec![ours])).unwrap();
        let (last, ours) = event();
        set(&mut vectors, 2, 1, IrqData::Eventfds(vec![ours])).unwrap();
        vectors.signal(0);
        vectors.signal(1);
        vectors.signal(2);
        vectors.signal(2);
        vectors.signal(3);
        assert_eq!((signals(&first), signals(&last)), (1, 2));
    }

    #[test]
    fn no_file_descriptor_disables() {
        let mut vectors = Vectors::new(2).unwrap();
        let (first, ours_first) = event();
        let (second, ours_second) = event();
        let both = vec![ours_first, ours_second];
        set(&mut vectors, 0, 2, IrqData::Eventfds(both)).unwrap();
        set(&mut vectors, 0, 1, IrqData::Eventfds(Vec::new())).unwrap();
        vectors.signal(0);
        vectors.signal(1);
        assert_eq!((signals(&first), signals(&second)), (0, 1));
        set(&mut vectors, 0, 0, IrqData::None).unwrap();
        vectors.signal(1);
        assert_eq!(signals(&second), 0);
    }

    #[test]
    fn a_trigger_without_eventfds_signals() {
        let mut vectors = Vectors::new(2).unwrap();
        let (event, ours) = event();
        set(&mut vectors, 1, 1, IrqData::Eventfds(vec![ours])).unwrap();
        set(&mut vectors, 0, 2, IrqData::None).unwrap();
        set(&mut vectors, 0, 2, IrqData::Bools(&[1, 0])).unwrap();
        set(&mut vectors, 0, 2, IrqData::Bools(&[0, 1])).unwrap();
        assert_eq!(signals(&event), 2);
    }

    /// Returns the result of `work`, or panics if this takes longer than [`patience`].
    fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || sender.send(work()));
        receiver.recv_timeout(patience()).expect("timed out")
    }

    #[test]
    fn a_signal_does_not_block() {
        let mut vectors = Vectors::new(1).unwrap();
        let (mut event, ours) = event();
        set(&mut vectors, 0, 1, IrqData::Eventfds(vec![ours])).unwrap();
        event.write_all(&(u64::MAX - 1).to_ne_bytes()).unwrap();
        // The VMM shares the open file, so it can clear the non-blocking flag.
        fcntl_setfl(&event, OFlags::empty()).unwrap();
        let mut vectors = in_time(move || {
            vectors.signal(0);
            vectors.signal(0);
            vectors
        });
        assert_eq!(signals(&event), u64::MAX);
        vectors.signal(0);
        assert_eq!(signals(&event), 1);
    }

    #[test]
    fn signals_are_not_limited() {
        let mut vectors = Vectors::new(1).unwrap();
        let (event, ours) = event();
        set(&mut vectors, 0, 1, IrqData::Eventfds(vec![ours])).unwrap();
        for _ in 0..1000 {
            vectors.signal(0);
        }
        assert_eq!(signals(&event), 1000);
    }

    #[test]
    fn files_other_than_eventfds_are_refused() {
        let mut vectors = Vectors::new(1).unwrap();
        let (event, ours) = event();
        set(&mut vectors, 0, 1, IrqData::Eventfds(vec![ours])).unwrap();
        // A write to a pipe without a reader may block, and a write to a file changes it.
        let (_reader, writer) = pipe().unwrap();
        let file = tempfile::tempfile().unwrap();
        for fd in [writer, file.into()] {
            let refused = set(&mut vectors, 0, 1, IrqData::Eventfds(vec![fd]));
            assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        vectors.signal(0);
        assert_eq!(signals(&event), 1);
    }

    #[test]
    fn bad_messages_are_refused() {
        let mut vectors = Vectors::new(2).unwrap();
        let fds = |count| IrqData::Eventfds((0..count).map(|_| event().1).collect());
        assert!(set(&mut vectors, 2, 1, fds(1)).is_err());
        assert!(set(&mut vectors, 1, 2, fds(2)).is_err());
        assert!(set(&mut vectors, u32::MAX, 2, fds(2)).is_err());
        for action in [Action::Mask, Action::Unmask] {
            let masked = vectors.set(IrqSet {
                index: 2,
                start: 0,
                count: 1,
                action,
                data: IrqData::None,
            });
            // The error's kind depends on the version of Rust.
            let error = masked.unwrap_err().raw_os_error();
            assert_eq!(error, Some(Errno::OPNOTSUPP.raw_os_error()));
        }
    }
}
