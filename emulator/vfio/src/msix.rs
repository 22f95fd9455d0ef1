// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! MSI-X: the eventfds that signal interrupts to the VMM. The VMM emulates the table itself.
//!
//! The kernel wakes all that wait for an eventfd before a signal of it returns, and the VMM chooses how many these are. So only
//! the VMM's own thread signals, without the lock of the device. Others wake that thread by an eventfd that only this program has.
//!
//! A write to an eventfd with the maximum count blocks until the next read, unless the open file is non-blocking. The VMM shares
//! the open file. So it can fill the count and clear the flag at any time, also between a check and the write. A signal by the
//! kernel itself, as for interrupts of KVM and VFIO, never blocks: it adds one, or leaves the count as it is. A program gets the
//! kernel to do that by asynchronous I/O, the completion of which signals an eventfd.

use std::{
    collections::BTreeSet,
    fs::File,
    io, mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use nix::libc::timespec;
use rustix::{
    event::{EventfdFlags, eventfd},
    fs::{MemfdFlags, memfd_create},
    io::{Errno, read, write},
};
use vfio_user::{Action, IrqData, IrqSet};
use vmm_sys_util::aio::{IOCB_CMD_PREAD, IOCB_FLAG_RESFD, IoContext, IoControlBlock, IoEvent};

/// Maximum number of completed reads that the kernel keeps until they are fetched.
const MAX_ENDED: usize = 64;

/// An eventfd of a VMM, or what it has sent in place of one. Only the VMM's thread drops the last reference, as that may take
/// long.
pub(crate) type Eventfd = Arc<OwnedFd>;

/// The function's interrupt vectors.
#[derive(Debug)]
pub(crate) struct Vectors {
    eventfds: Vec<Option<Eventfd>>,
    /// Vectors that the VMM's thread has to signal.
    due: BTreeSet<u16>,
    waker: Option<Arc<Waker>>,
}

/// Wakes the thread of a VMM.
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

impl Waker {
    /// # Errors
    ///
    /// This program has too many descriptors.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Ok(Self(eventfd(0, flags)?))
    }

    fn wake(&self) {
        // A full count is a failure, and wakes the thread, too.
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Lets the thread sleep until it is woken again.
    pub(crate) fn clear(&self) {
        let _ = read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Vectors {
    /// Creates `count` vectors without an eventfd.
    pub(crate) fn new(count: u16) -> Self {
        Self { eventfds: vec![None; count.into()], due: BTreeSet::new(), waker: None }
    }

    /// Carries out a SET_IRQS message for MSI-X. The caller must have passed its data to [`Signaller::check`]. Returns the former
    /// eventfds, to be dropped without the lock of the device.
    ///
    /// QEMU sends one vector per message. A vector without a file descriptor is disabled. A trigger without data for
    /// no vector disables all.
    ///
    /// # Errors
    ///
    /// The message names vectors that do not exist, or an action that MSI-X vectors do not support.
    pub(crate) fn set(&mut self, set: &mut IrqSet<'_>) -> io::Result<Vec<Option<Eventfd>>> {
        if set.action != Action::Trigger {
            // VFIO can't mask and unmask MSI-X vectors.
            return Err(Errno::OPNOTSUPP.into());
        }
        let end = set.start.checked_add(set.count).ok_or(Errno::INVAL)?;
        let range = set.start as usize..end as usize;
        let chosen = self.eventfds.get_mut(range).ok_or(Errno::INVAL)?;
        match &mut set.data {
            IrqData::Eventfds(fds) => {
                let mut fds = mem::take(fds).into_iter().map(Arc::new);
                let chosen = chosen.iter_mut();
                return Ok(chosen.map(|one| mem::replace(one, fds.next())).collect());
            }
            IrqData::None if set.count == 0 => return Ok(self.clear()),
            // A trigger without eventfds signals the vectors. CAST: their numbers fit.
            IrqData::None => (set.start..end).for_each(|vector| self.signal(vector as u16)),
            IrqData::Bools(bools) => {
                let chosen = (set.start..end).zip(bools.iter());
                let chosen = chosen.filter(|(_, is)| **is != 0);
                chosen.for_each(|(vector, _)| self.signal(vector as u16));
            }
        }
        Ok(Vec::new())
    }

    /// Has the VMM's thread signal a vector, if it exists and is enabled.
    pub(crate) fn signal(&mut self, vector: u16) {
        if let Some(Some(_)) = self.eventfds.get(usize::from(vector)) {
            if let Some(waker) = self.waker.as_ref().filter(|_| self.due.is_empty()) {
                waker.wake();
            }
            self.due.insert(vector);
        } else {
            tracing::debug!(vector, "interrupt of a disabled vector");
        }
    }

    /// Returns the eventfds to signal, without the lock of the device.
    pub(crate) fn take_due(&mut self) -> Vec<Eventfd> {
        let due = mem::take(&mut self.due).into_iter();
        due.filter_map(|vector| self.eventfds.get(usize::from(vector))?.clone()).collect()
    }

    /// Disables all vectors. Returns their eventfds, to be dropped without the lock of the device.
    fn clear(&mut self) -> Vec<Option<Eventfd>> {
        let none = vec![None; self.eventfds.len()];
        mem::replace(&mut self.eventfds, none)
    }

    /// Disables all vectors, likewise, and has this thread woken from now on.
    pub(crate) fn serve(&mut self, waker: Option<Arc<Waker>>) -> Vec<Option<Eventfd>> {
        self.waker = waker;
        self.due.clear();
        self.clear()
    }
}

/// Signals eventfds through the kernel.
#[derive(Debug)]
pub(crate) struct Signaller {
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
    pub(crate) fn new() -> io::Result<Self> {
        // CAST: it is a small constant.
        let context = IoContext::new(MAX_ENDED as u32)?;
        let empty = memfd_create("efa-empty", MemfdFlags::CLOEXEC)?.into();
        Ok(Self { context, empty, ended: 0 })
    }

    /// Checks whether file descriptors are eventfds, without a call of their files.
    ///
    /// # Errors
    ///
    /// One is not.
    pub(crate) fn check(&self, data: &IrqData<'_>) -> io::Result<()> {
        let IrqData::Eventfds(fds) = data else {
            return Ok(());
        };
        // The kernel refuses a read with unknown flags, after it has looked at the eventfd.
        let unsupported = Some(Errno::OPNOTSUPP.raw_os_error());
        let is_eventfd = |fd| {
            let error = self.submit(fd, u32::MAX).err();
            error.and_then(|error| error.raw_os_error()) == unsupported
        };
        match fds.iter().all(is_eventfd) {
            true => Ok(()),
            false => Err(Errno::INVAL.into()),
        }
    }

    /// Signals an eventfd. This never blocks, whatever other processes do with the eventfd, but may take long.
    pub(crate) fn signal(&mut self, eventfd: &OwnedFd) {
        if self.ended == MAX_ENDED / 2 {
            self.forget_ended();
        }
        let result = self.submit(eventfd, 0).or_else(|error| {
            if error.kind() != io::ErrorKind::WouldBlock {
                return Err(error);
            }
            self.forget_ended();
            self.submit(eventfd, 0)
        });
        match result {
            Ok(_) => self.ended += 1,
            Err(error) => tracing::debug!(%error, "cannot signal an interrupt"),
        }
    }

    /// Submits a read of the empty file, with flags of `preadv2`, the completion of which signals the eventfd.
    fn submit(&self, eventfd: &OwnedFd, flags: u32) -> io::Result<usize> {
        // CAST: descriptors are not negative, and the kernel's constants fit.
        let descriptor = |fd: &dyn AsRawFd| fd.as_raw_fd() as u32;
        self.context.submit(&[&mut IoControlBlock {
            aio_lio_opcode: IOCB_CMD_PREAD as u16,
            aio_fildes: descriptor(&self.empty),
            // Linux calls this field `aio_rw_flags` since 4.13.
            aio_reserved1: flags,
            aio_flags: IOCB_FLAG_RESFD,
            aio_resfd: descriptor(eventfd),
            ..IoControlBlock::default()
        }])
    }

    /// Fetches and discards completed reads, to make space for more.
    fn forget_ended(&mut self) {
        let mut events = [IoEvent::default(); MAX_ENDED];
        let mut no_time = timespec { tv_sec: 0, tv_nsec: 0 };
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
        event::epoll::{CreateFlags, create},
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
        event.read_exact(&mut count).map_or(0, |()| u64::from_ne_bytes(count))
    }

    fn message(start: u32, count: u32, action: Action, data: IrqData<'_>) -> IrqSet<'_> {
        IrqSet { index: 2, start, count, action, data }
    }

    /// Vectors with the thread of a VMM.
    struct Function {
        vectors: Vectors,
        signaller: Signaller,
        waker: Arc<Waker>,
    }

    impl Function {
        fn new(count: u16) -> Self {
            let mut vectors = Vectors::new(count);
            let waker = Arc::new(Waker::new().unwrap());
            vectors.serve(Some(Arc::clone(&waker)));
            Self { vectors, signaller: Signaller::new().unwrap(), waker }
        }

        fn set(&mut self, start: u32, count: u32, data: IrqData<'_>) -> io::Result<()> {
            self.signaller.check(&data)?;
            let mut set = message(start, count, Action::Trigger, data);
            self.vectors.set(&mut set).map(drop)
        }

        /// Does what the thread of the VMM does.
        fn woken(&mut self) {
            self.waker.clear();
            let due = self.vectors.take_due();
            due.iter().for_each(|eventfd| self.signaller.signal(eventfd));
        }

        /// Signals vectors.
        fn signal(&mut self, vectors: &[u16]) {
            vectors.iter().for_each(|vector| self.vectors.signal(*vector));
            self.woken();
        }
    }

    /// Steps that set vectors and signal them, with the numbers of signals of both events since the step before.
    #[test]
    fn vectors_are_set_and_signalled() {
        let mut function = Function::new(3);
        let events = [event(), event()];
        let fds = |which: &[usize]| {
            let fds = which.iter().map(|at| events[*at].1.try_clone().unwrap());
            IrqData::Eventfds(fds.collect())
        };
        let (all, first) = (IrqData::None, IrqData::Bools(&[1, 0]));
        let second = IrqData::Bools(&[0, 1]);
        for (step, start, count, data, signalled, expected) in [
            ("one", 0, 1, fds(&[0]), &[0][..], [1, 0]),
            ("another", 2, 1, fds(&[1]), &[0, 1, 2, 3, 2], [1, 1]),
            ("none", 0, 1, fds(&[]), &[0, 2], [0, 1]),
            ("both", 0, 2, fds(&[0, 1]), &[], [0, 0]),
            ("a trigger of all", 0, 2, all, &[], [1, 1]),
            ("the first", 0, 2, first, &[], [1, 0]),
            ("the second", 0, 2, second, &[], [0, 1]),
            ("no vectors", 0, 0, IrqData::None, &[0, 1, 2], [0, 0]),
        ] {
            function.set(start, count, data).unwrap();
            function.woken();
            function.signal(signalled);
            let found = events.each_ref().map(|(event, _)| signals(event));
            assert_eq!(found, expected, "{step}");
        }
    }

    /// A signal takes as long as the VMM likes.
    #[test]
    fn only_the_thread_of_the_vmm_signals() {
        let mut function = Function::new(2);
        let (event, ours) = event();
        function.set(0, 1, IrqData::Eventfds(vec![ours])).unwrap();
        let wakes = |function: &Function| read(&function.waker.0, &mut [0; 8]).is_ok();
        assert!(!wakes(&function));
        function.vectors.signal(1);
        assert!(!wakes(&function));
        function.vectors.signal(0);
        function.vectors.signal(0);
        assert_eq!(signals(&event), 0);
        assert!(wakes(&function));
        function.woken();
        assert_eq!(signals(&event), 1);
        function.vectors.signal(0);
        assert!(wakes(&function));
        // The next VMM gets no interrupt of this one.
        function.vectors.serve(None);
        function.woken();
        assert_eq!(signals(&event), 0);
    }

    /// The end of a descriptor may take long, too.
    #[test]
    fn only_the_thread_of_the_vmm_drops_eventfds() {
        let mut vectors = Vectors::new(1);
        let mut set = |data| vectors.set(&mut message(0, 1, Action::Trigger, data));
        let (_, first) = event();
        let number = first.as_raw_fd();
        assert!(matches!(set(IrqData::Eventfds(vec![first])).unwrap()[..], [None]));
        let former = set(IrqData::Eventfds(vec![event().1])).unwrap();
        assert_eq!(former[0].as_ref().unwrap().as_raw_fd(), number);
        assert!(set(IrqData::Eventfds(Vec::new())).unwrap()[0].is_some());
        assert!(set(IrqData::Eventfds(vec![event().1])).unwrap()[0].is_none());
        assert!(vectors.serve(None)[0].is_some());
    }

    /// Returns the result of `work`, or panics if this takes longer than [`patience`].
    fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || sender.send(work()));
        receiver.recv_timeout(patience()).expect("timed out")
    }

    #[test]
    fn a_signal_does_not_block() {
        let mut function = Function::new(1);
        let (mut event, ours) = event();
        function.set(0, 1, IrqData::Eventfds(vec![ours])).unwrap();
        event.write_all(&(u64::MAX - 1).to_ne_bytes()).unwrap();
        // The VMM shares the open file, so it can clear the non-blocking flag.
        fcntl_setfl(&event, OFlags::empty()).unwrap();
        let mut function = in_time(move || {
            function.signal(&[0]);
            function.signal(&[0]);
            function
        });
        assert_eq!(signals(&event), u64::MAX);
        function.signal(&[0]);
        assert_eq!(signals(&event), 1);
    }

    #[test]
    fn signals_are_not_limited() {
        let mut function = Function::new(1);
        let (event, ours) = event();
        function.set(0, 1, IrqData::Eventfds(vec![ours])).unwrap();
        for _ in 0..1000 {
            function.signal(&[0]);
        }
        assert_eq!(signals(&event), 1000);
    }

    #[test]
    fn files_other_than_eventfds_are_refused() {
        let mut function = Function::new(1);
        let (event, ours) = event();
        function.set(0, 1, IrqData::Eventfds(vec![ours])).unwrap();
        let (_reader, writer) = pipe().unwrap();
        let file = tempfile::tempfile().unwrap();
        let epoll = create(CreateFlags::CLOEXEC).unwrap();
        for fd in [writer, file.into(), epoll] {
            let refused = function.set(0, 1, IrqData::Eventfds(vec![fd]));
            assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        function.signal(&[0]);
        assert_eq!(signals(&event), 1);
    }

    #[test]
    fn bad_messages_are_refused() {
        let mut function = Function::new(2);
        let fds = |count| IrqData::Eventfds((0..count).map(|_| event().1).collect());
        assert!(function.set(2, 1, fds(1)).is_err());
        assert!(function.set(1, 2, fds(2)).is_err());
        assert!(function.set(u32::MAX, 2, fds(2)).is_err());
        for action in [Action::Mask, Action::Unmask] {
            let mut set = message(0, 1, action, IrqData::None);
            let masked = function.vectors.set(&mut set);
            // The error's kind depends on the version of Rust.
            let error = masked.unwrap_err().raw_os_error();
            assert_eq!(error, Some(Errno::OPNOTSUPP.raw_os_error()));
        }
    }
}
