// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A buffered socket that carries messages with descriptors.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::{self, MaybeUninit},
    ops::Range,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use rustix::{
    cmsg_space,
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, recvmsg, sendmsg,
    },
};

use crate::{
    error::Error,
    wire::{HEADER, Header, MAX_FDS, MAX_MESSAGE},
};

/// A message. Its payload stays in the channel's buffer until the next [`Channel::receive`].
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) header: Header,
    pub(crate) payload: Range<usize>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// The result of one `recvmsg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Bytes,
    /// The peer has closed the connection.
    End,
    /// The waker is readable.
    Woken,
    /// The deadline has expired.
    Nothing,
}

/// The receive buffer of a socket.
#[derive(Debug)]
pub(crate) struct Channel {
    buffer: Box<[u8]>,
    /// Received bytes that were not returned as a part of a message yet.
    unread: Range<usize>,
    /// Descriptors, each with the buffer offset of its message: the incomplete message, or the last one.
    fds: Vec<(usize, OwnedFd)>,
}

impl Channel {
    pub(crate) fn new(stream: &UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        Ok(Self { buffer: vec![0; MAX_MESSAGE].into(), unread: 0..0, fds: Vec::new() })
    }

    /// Whether the buffer contains a part of a message.
    pub(crate) fn is_within_message(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Returns the bytes of a payload.
    pub(crate) fn bytes(&self, payload: Range<usize>) -> &[u8] {
        &self.buffer[payload]
    }

    /// Returns the next message, if it was received completely.
    ///
    /// # Errors
    ///
    /// The size in its header is invalid.
    pub(crate) fn next(&mut self) -> Result<Option<Message>, Error> {
        let Some(header) = self.header(self.unread.start) else {
            return Ok(None);
        };
        let size = header.size as usize;
        if !(HEADER..=MAX_MESSAGE).contains(&size) {
            return Err(Error::Size(header.size));
        }
        if self.unread.len() < size {
            return Ok(None);
        }
        let start = self.unread.start;
        self.unread.start += size;
        let of_others = self.fds.partition_point(|(at, _)| *at <= start);
        let later = self.fds.split_off(of_others);
        let mine = mem::replace(&mut self.fds, later).into_iter();
        Ok(Some(Message { header, payload: start + HEADER..start + size, fds: mine.map(|(_, fd)| fd).collect() }))
    }

    /// Returns the header at an offset in the buffer, if it was received completely.
    fn header(&self, at: usize) -> Option<Header> {
        Header::decode(&self.buffer[at..self.unread.end])
    }

    /// Receives queued bytes, up to the free space of the buffer. Waits for them until `deadline`, or until `waker` is readable.
    ///
    /// The caller must have taken all complete messages with [`Self::next`], so that there is space.
    ///
    /// # Errors
    ///
    /// The socket fails, or there are more descriptors than a message may have.
    pub(crate) fn receive(
        &mut self,
        stream: &UnixStream,
        waker: Option<BorrowedFd<'_>>,
        deadline: Option<Instant>,
    ) -> Result<Received, Error> {
        if self.unread.start > 0 {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.fds.iter_mut().for_each(|(at, _)| *at -= self.unread.start);
            self.unread = 0..self.unread.len();
        }
        if let Some(ended) = wait(stream, waker, deadline)? {
            return Ok(ended);
        }
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let room = &mut self.buffer[self.unread.end..];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(stream, &mut [IoSliceMut::new(room)], &mut control, flags) {
            Ok(received) => received,
            Err(Errno::INTR) => return Ok(Received::Bytes),
            Err(error) => return Err(io::Error::from(error).into()),
        };
        let fds: Vec<_> = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect();
        self.unread.end += received.bytes;
        if !fds.is_empty() {
            self.attach(fds)?;
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(Error::Descriptors);
        }
        match received.bytes {
            0 => Ok(Received::End),
            _ => Ok(Received::Bytes),
        }
    }

    /// Assigns received descriptors to their message.
    ///
    /// A `recvmsg` ends after bytes that came with descriptors. So these belong to the last message of which bytes have been
    /// received.
    fn attach(&mut self, fds: Vec<OwnedFd>) -> Result<(), Error> {
        let mut at = self.unread.start;
        while let Some(header) = self.header(at) {
            let size = header.size as usize;
            if size < HEADER || self.unread.end - at <= size {
                break;
            }
            at += size;
        }
        self.fds.extend(fds.into_iter().map(|fd| (at, fd)));
        if self.fds.iter().filter(|(of, _)| *of == at).count() > MAX_FDS {
            return Err(Error::Descriptors);
        }
        Ok(())
    }
}

/// Waits until the socket can be read, which returns `None`, until `waker` can be, or until `deadline`.
fn wait(stream: &UnixStream, waker: Option<BorrowedFd<'_>>, deadline: Option<Instant>) -> io::Result<Option<Received>> {
    let time = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    if time.is_some_and(|time| time.is_zero()) {
        return Ok(Some(Received::Nothing));
    }
    let fds = [stream.as_fd(), waker.unwrap_or(stream.as_fd())];
    let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let time = time.and_then(|time| Timespec::try_from(time).ok());
    match poll(&mut fds, time.as_ref()) {
        Ok(0) => Ok(Some(Received::Nothing)),
        Ok(_) if waker.is_some() && !fds[1].revents().is_empty() => Ok(Some(Received::Woken)),
        Ok(_) => Ok(None),
        Err(Errno::INTR) => Ok(Some(Received::Bytes)),
        Err(error) => Err(error.into()),
    }
}

/// Sends bytes, with descriptors attached to the first. One call suffices if the peer has read all earlier bytes.
///
/// # Errors
///
/// The socket fails, or the peer reads too slowly to send all within `limit`, which is also the socket's write timeout.
pub(crate) fn send(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>], limit: Duration) -> Result<(), Error> {
    let deadline = Instant::now() + limit;
    let mut sent = 0;
    while sent < bytes.len() {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if sent == 0 && !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Error::Descriptors);
        }
        let rest = [IoSlice::new(&bytes[sent..])];
        match sendmsg(stream, &rest, &mut control, SendFlags::NOSIGNAL) {
            Ok(count) => sent += count,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(Error::Slow),
            Err(error) => return Err(io::Error::from(error).into()),
        }
        if sent < bytes.len() && Instant::now() >= deadline {
            return Err(Error::Slow);
        }
    }
    Ok(())
}
