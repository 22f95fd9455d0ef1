// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What ends a connection, and what does not.

use std::{
    fs::{self, File},
    os::fd::AsFd,
    time::Duration,
};

use proptest::{collection::vec, prelude::*};
use rustix::fs::{MemfdFlags, memfd_create};
use vfio_user_server::{Command, Error, Flags, HEADER, Limits, MAX_DATA, MAX_FDS};

use super::{Event, IRQ, connect, connect_with, message, patient, refused, silent, words};

#[test]
fn invalid_messages_end_the_connection() {
    for (bytes, what) in [
        (message(13, 15, 0), "Size(15)"),
        (message(13, 0, 0), "Size(0)"),
        (message(13, u32::MAX, 0), "Size(4294967295)"),
        (message(13, (MAX_DATA + 33) as u32, 0), "Size(65569)"),
        (message(13, HEADER as u32, 1), "Kind(1)"),
        (message(13, HEADER as u32, 0x12), "Kind(18)"),
        (message(13, HEADER as u32 + 1, 0), "Truncated"),
        (vec![0; 5], "Truncated"),
    ] {
        let (mut client, memory, server) = connect();
        client.send_raw(&bytes, &[]).unwrap();
        client.shutdown_write().unwrap();
        let error = server.join().unwrap().unwrap_err();
        assert_eq!(format!("{error:?}"), what);
        assert!(client.receive().is_err());
        assert_eq!(memory.events(), []);
    }
}

#[test]
fn the_first_message_is_a_version() {
    for (command, payload) in [
        (Command::Version, &b"\x01\0\0\0"[..]),
        (Command::Version, b""),
        (Command::Version, b"\0\0\0\0{"),
        (Command::Version, b"\0\0\0\0\0"),
        (Command::Version, b"\0\0\0\0[[[\0"),
        (Command::Version, b"\0\0\0\0\xff\xfe\0\0"),
        (Command::DeviceReset, b""),
    ] {
        let (mut client, memory, server) = silent(patient());
        refused(&mut client, command, payload, &[]);
        assert!(client.receive().is_err());
        assert!(matches!(server.join().unwrap(), Err(Error::Version)));
        assert_eq!(memory.events(), []);
    }
    let (mut client, ..) = silent(patient());
    client.request(Command::Version, &[0; 4], &[]).unwrap();
    client.reset().unwrap();
}

#[test]
fn messages_may_come_in_any_pieces() {
    let (mut client, memory, _) = connect();
    let file = File::open("/dev/null").unwrap();
    let fds = [file.as_fd()];
    let (fd, none) = fds.split_at(1);
    let mut bytes = message(Command::DmaMap as u16, HEADER as u32 + 32, 0);
    bytes.extend(words(&[0, 3]));
    bytes.extend([1; 24]);
    let reset = message(Command::DeviceReset as u16, HEADER as u32, 0);
    for cut in 1..bytes.len() - 1 {
        // The descriptor comes with the first piece or the second one.
        for (one, two) in [(fd, none), (none, fd)] {
            let mut before = reset.clone();
            before.extend(&bytes[..cut]);
            client.send_raw(&reset, &[]).unwrap();
            client.send_raw(&before, one).unwrap();
            client.send_raw(&bytes[cut..], two).unwrap();
            client.send_raw(&reset, &[]).unwrap();
            for _ in 0..4 {
                assert_eq!(client.receive().unwrap().header.flags, Flags::REPLY);
            }
            let events = memory.events();
            assert!(matches!(events[..], [Event::Reset, Event::Reset, Event::Map(_, true), Event::Reset]));
        }
    }
}

/// Counts the descriptors of this process for files of this name.
fn open(name: &str) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap();
    links
        .filter_map(|link| fs::read_link(link.ok()?.path()).ok())
        .filter(|target| target.to_string_lossy().contains(name))
        .count()
}

#[test]
fn descriptors_do_not_leak() {
    let file = File::from(memfd_create("leaky", MemfdFlags::CLOEXEC).unwrap());
    let (mut client, memory, server) = connect();
    let reset = message(Command::DeviceReset as u16, HEADER as u32, 0);
    for count in 1..=MAX_FDS {
        client.send_raw(&reset, &vec![file.as_fd(); count]).unwrap();
        assert_eq!(client.receive().unwrap().header.error, 22);
        client.send_raw(&message(99, HEADER as u32, 0), &vec![file.as_fd(); count]).unwrap();
        client.receive().unwrap();
    }
    assert_eq!(open("leaky"), 1);
    // Two pieces of one message, each with descriptors.
    client.send_raw(&reset[..1], &[file.as_fd(); MAX_FDS]).unwrap();
    client.send_raw(&reset[1..2], &[file.as_fd()]).unwrap();
    assert!(matches!(server.join().unwrap(), Err(Error::Descriptors)));
    assert_eq!((open("leaky"), memory.events()), (1, vec![]));
}

#[test]
fn a_client_that_does_nothing_is_disconnected() {
    let limits = Limits { start: Duration::from_millis(50), ..patient() };
    let (_silent, _, server) = silent(limits);
    assert!(matches!(server.join().unwrap(), Err(Error::Start)));
    // Requests do not extend the limit before the first use of the device, whether or not they arrive in time.
    let (mut client, memory, server) = silent(limits);
    memory.state().started = false;
    let _ = client.negotiate();
    let _ = client.reset();
    assert!(matches!(server.join().unwrap(), Err(Error::Start)));
    // Neither does a message that has only begun.
    let (mut client, _, server) = silent(limits);
    client.send_raw(&[1; 7], &[]).unwrap();
    assert!(matches!(server.join().unwrap(), Err(Error::Start)));
}

#[test]
fn a_client_that_stops_within_a_message_is_disconnected() {
    let limits = Limits { message: Duration::from_millis(50), ..patient() };
    let (mut client, _, server) = connect_with(limits);
    client.send_raw(&[1; 7], &[]).unwrap();
    assert!(matches!(server.join().unwrap(), Err(Error::Slow)));

    let (mut client, _, server) = connect_with(limits);
    let access = words(&[0, 0, 3, MAX_DATA as u32]);
    // The client reads nothing. The server may have disconnected it already.
    for _ in 0..16 {
        let _ = client.send(Command::RegionRead, Flags::COMMAND, &access, &[]);
    }
    assert!(matches!(server.join().unwrap(), Err(Error::Slow)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// For arbitrary data in arbitrary pieces, the server ends, and all its replies are valid messages.
    #[test]
    fn arbitrary_bytes_do_no_harm(
        pieces in vec((any_piece(), 0..4_usize), 0..12),
        negotiated: bool,
    ) {
        let file = File::open("/dev/null").unwrap();
        let (mut client, _, server) = silent(patient());
        if negotiated {
            client.negotiate().unwrap();
        }
        for (piece, fds) in pieces {
            // The server may have disconnected the client already.
            let _ = client.send_raw(&piece, &vec![file.as_fd(); fds]);
        }
        let _ = client.shutdown_write();
        let _ = server.join().unwrap();
        while let Ok(reply) = client.receive() {
            prop_assert!(matches!(reply.header.flags, Flags::REPLY | Flags::ERROR));
            prop_assert_eq!(reply.header.flags == Flags::ERROR, reply.header.error != 0);
        }
    }
}

/// A message with an arbitrary payload, or arbitrary bytes.
fn any_piece() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![4 => 0..4_u32, 2 => Just(IRQ), 1 => 0..0x100_u32, 1 => any::<u32>()];
    let parts = (
        0..20_u16,
        vec(word, 0..9),
        prop_oneof![8 => Just(0), 1 => any::<i8>()],
        prop_oneof![4 => Just(0_u32), 4 => Just(16), 1 => any::<u32>()],
    );
    let request = parts.prop_map(|(command, words, delta, flags)| {
        let size = (HEADER + 4 * words.len()) as u32;
        let mut bytes = message(command, size.wrapping_add_signed(delta.into()), flags);
        bytes.extend(words.into_iter().flat_map(u32::to_ne_bytes));
        bytes
    });
    prop_oneof![9 => request, 1 => vec(any::<u8>(), 1..64)]
}
