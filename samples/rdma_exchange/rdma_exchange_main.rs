// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A client of RDMA devices that exchanges data with a peer in another kernel: an example of
//! `rdma::client`. The debugfs file `rdma_exchange/run` takes commands and returns the last answer:
//!
//! - `open PAIRS` creates 1 to 8 queue pairs on the first EFA device. Answer: `GID QPN QPN ...`.
//! - `meet GID QPN QPN ...` sets the peer's queue pairs, as in the answer to its `open`.
//! - `send COUNT SIZE` sends and receives COUNT messages of SIZE bytes each. Answer:
//!   `calls COUNT bytes .. ns .. latency_ns ..`.
//! - `exchange COUNT SIZE` lets the peer read and write COUNT regions, and does so with as many of
//!   the peer's. The answer has the same format.
//! - `close` destroys all objects of the session.

#![deny(unsafe_code)]
#![deny(clippy::multiple_unsafe_ops_per_block)]

mod calls;
#[allow(dead_code, unsafe_code, reason = "as ../../efa_rs")]
mod ffi;
mod messages;
#[allow(dead_code, unsafe_code, unused_imports, reason = "as ../../efa_rs")]
mod rdma;
mod session;
#[allow(dead_code, unsafe_code, reason = "as ../../efa_rs")]
mod sys;
mod tally;
mod wire;

use kernel::{
    debugfs::{
        Dir,
        File, //
    },
    fmt, new_mutex,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex, //
    },
    uaccess::UserSliceReader,
};

use crate::{
    rdma::{
        client::{
            client_slot,
            Client,
            Device,
            Registration,
            Transport, //
        },
        Gid, //
    },
    session::{
        Session,
        Wake,
        PORT, //
    },
};

module! {
    type: RdmaExchange,
    name: "rdma_exchange",
    authors: ["The efa-rs authors"],
    description: "Exchanges data with another kernel's client of RDMA devices",
    license: "Dual BSD/GPL",
}

/// Maximum number of queue pairs.
const MAX_PAIRS: usize = 8;
/// Bytes of the longest command.
const COMMAND_SIZE: usize = 256;

/// The module: its debugfs file, which owns the client.
struct RdmaExchange {
    file: Pin<KBox<File<Control>>>,
    _dir: Dir,
}

impl kernel::Module for RdmaExchange {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let dir = Dir::new(c"rdma_exchange");
        let control = Control::new();
        let file = dir.read_write_callback_file(c"run", control, &Control::show, &Control::run);
        Ok(Self {
            file: KBox::pin_init(file, GFP_KERNEL)?,
            _dir: dir,
        })
    }
}

impl Drop for RdmaExchange {
    fn drop(&mut self) {
        // Ends a running command, for which the removal of the file waits.
        self.file.client.with_first(|presence| presence.wake.end());
    }
}

/// State behind the debugfs file.
#[pin_data]
struct Control {
    #[pin]
    answer: Mutex<Option<CString>>,
    #[pin]
    client: Registration<Exchange>,
}

impl Control {
    fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            answer <- new_mutex!(None),
            client <- Registration::new(),
        }? Error)
    }

    /// Prints the last answer, for a read of the file.
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.answer.lock() {
            Some(answer) => f.write_fmt(fmt!("{}", &**answer)),
            None => Ok(()),
        }
    }

    /// Runs a command, for a write to the file.
    fn run(&self, reader: &mut UserSliceReader) -> Result {
        let mut text = [0; COMMAND_SIZE];
        let text = text.get_mut(..reader.len()).ok_or(EINVAL)?;
        reader.read_slice(text)?;
        let command = core::str::from_utf8(text).map_err(|_| EINVAL)?;

        let result = self.client.with_first(|presence| presence.run(command));
        *self.answer.lock() = result.ok_or(ENODEV)??;
        Ok(())
    }
}

/// The client.
struct Exchange;

client_slot!(Exchange);

impl Client for Exchange {
    const NAME: &'static CStr = c"rdma_exchange";

    type Data<'a> = Presence<'a>;

    fn add<'a>(device: &'a Device) -> impl PinInit<Presence<'a>, Error> + 'a {
        try_pin_init!(Presence {
            _: {
                if !Transport::EFA_SRD.is_of(device) {
                    return Err(ENODEV);
                }
            },
            device,
            wake: Wake::new()?,
            session <- new_mutex!(None),
        }? Error)
    }

    fn remove<'a>(_device: &'a Device, presence: Pin<&Presence<'a>>) {
        presence.wake.end();
    }
}

/// A registered device, with its session.
#[pin_data]
struct Presence<'a> {
    device: &'a Device,
    wake: Arc<Wake>,
    #[pin]
    session: Mutex<Option<Session<'a>>>,
}

impl Presence<'_> {
    /// Runs a command; returns its answer.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if there is no such command.
    /// - [`EBUSY`] if `open` finds an open session, [`ENOTCONN`] if a command needs one.
    /// - Those of the command. After a failed work request, the session can only be closed.
    fn run(&self, command: &str) -> Result<Option<CString>> {
        let mut words = command.split_ascii_whitespace();
        let verb = words.next().ok_or(EINVAL)?;
        let mut session = self.session.lock();
        match verb {
            "open" => {
                let pairs = number(words.next())?;
                if !(1..=MAX_PAIRS).contains(&pairs) {
                    return Err(EINVAL);
                }
                if session.is_some() {
                    return Err(EBUSY);
                }
                let gid = self.device.gid(PORT, 0)?;
                let opened = session.insert(Session::open(self.device, &self.wake, pairs)?);
                CString::try_from_fmt(fmt!("{}", Opened(gid, opened))).map(Some)
            }
            "meet" => {
                let gid = u128::from_str_radix(words.next().ok_or(EINVAL)?, 16);
                let mut numbers = KVec::new();
                for word in words {
                    numbers.push(number(Some(word))?, GFP_KERNEL)?;
                }
                let session = Option::as_mut(&mut session).ok_or(ENOTCONN)?;
                session.meet(&gid.map_err(|_| EINVAL)?.to_be_bytes(), &numbers)?;
                Ok(None)
            }
            "send" | "exchange" => {
                let (count, size) = (number(words.next())?, number(words.next())?);
                let session = session.as_ref().ok_or(ENOTCONN)?;
                let tally = match verb {
                    "send" => messages::send(session, count, size),
                    _ => calls::exchange(session, count, size),
                }?;
                CString::try_from_fmt(fmt!("{tally}")).map(Some)
            }
            "close" => {
                *session = None;
                Ok(None)
            }
            _ => Err(EINVAL),
        }
    }
}

/// Answer of `open`.
struct Opened<'s, 'a>(Gid, &'s Session<'a>);

impl fmt::Display for Opened<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))?;
        self.1
            .numbers()
            .try_for_each(|number| write!(f, " {number}"))
    }
}

/// Parses a number.
fn number<T: core::str::FromStr>(word: Option<&str>) -> Result<T> {
    word.and_then(|word| word.parse().ok()).ok_or(EINVAL)
}
