// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A buffered socket that carries messages with descriptors.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::{self, MaybeUninit},
    ops::Range,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use rustix::{
    cmsg_space,
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};

use crate::{
    error::Error,
    wire::{HEADER, Header, MAX_FDS, MAX_MESSAGE},
};

/// A message; its payload is in the channel's buffer until that receives again.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) header: Header,
    pub(crate) payload: Range<usize>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// What one `recvmsg` has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Bytes,
    /// The other side has closed.
    End,
    /// The deadline is there.
    Nothing,
}

/// What has been received from a socket.
#[derive(Debug)]
pub(crate) struct Channel {
    buffer: Box<[u8]>,
    /// What is there and was no part of a message yet.
    unread: Range<usize>,
    /// Descriptors, and where in the buffer the message begins that they came with: the one that is incomplete, and the last.
    fds: Vec<(usize, OwnedFd)>,
    /// How long the socket waits.
    timeout: Option<Duration>,
}

impl Channel {
    pub(crate) fn new(stream: &UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(None)?;
        Ok(Self {
            buffer: vec![0; MAX_MESSAGE].into(),
            unread: 0..0,
            fds: Vec::new(),
            timeout: None,
        })
    }

    /// Whether there is a part of a message.
    pub(crate) fn is_within_message(&self) -> bool {
        !self.unread.is_empty()
    }

    /// A payload.
    pub(crate) fn bytes(&self, payload: Range<usize>) -> &[u8] {
        &self.buffer[payload]
    }

    /// The next message, if all of it has been received.
    ///
    /// # Errors
    ///
    /// Its size can't be.
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
        Ok(Some(Message {
            header,
            payload: start + HEADER..start + size,
            fds: mine.map(|(_, fd)| fd).collect(),
        }))
    }

    /// The header at a place of the buffer, if it is there.
    fn header(&self, at: usize) -> Option<Header> {
        let bytes = self.buffer[at..self.unread.end].first_chunk()?;
        Some(Header::decode(bytes))
    }

    /// Takes what has queued, as much as fits; waits for it until `deadline`.
    ///
    /// All complete messages must have been taken before, so that there is room.
    ///
    /// # Errors
    ///
    /// The socket fails, or there are more descriptors than a message may have.
    pub(crate) fn receive(
        &mut self,
        stream: &UnixStream,
        deadline: Option<Instant>,
    ) -> Result<Received, Error> {
        if self.unread.start > 0 {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.fds
                .iter_mut()
                .for_each(|(at, _)| *at -= self.unread.start);
            self.unread = 0..self.unread.len();
        }
        if !self.wait_until(stream, deadline)? {
            return Ok(Received::Nothing);
        }
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let room = &mut self.buffer[self.unread.end..];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(stream, &mut [IoSliceMut::new(room)], &mut control, flags) {
            Ok(received) => received,
            Err(Errno::INTR) => return Ok(Received::Bytes),
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
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

    /// Lets the socket wait no longer than that. Returns false if the time is over.
    fn wait_until(&mut self, stream: &UnixStream, deadline: Option<Instant>) -> io::Result<bool> {
        let timeout = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Ok(false);
        }
        if timeout != self.timeout {
            stream.set_read_timeout(timeout)?;
            self.timeout = timeout;
        }
        Ok(true)
    }

    /// Notes to which message descriptors belong.
    ///
    /// The kernel takes nothing more after bytes that came with descriptors, so they belong to the last message of which bytes
    /// have been received.
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

/// Sends bytes, the first of them with descriptors, in one call if the other side has read what came before.
///
/// # Errors
///
/// The socket fails, or the other side has not read it all within `limit`, which is the socket's timeout, too.
pub(crate) fn send(
    stream: &UnixStream,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    limit: Duration,
) -> Result<(), Error> {
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
