// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The first messages, which negotiate the version and the capabilities.

use serde::{Deserialize, Serialize};

use crate::wire::{Fields, MAX_DATA, MAX_FDS, Payload};

/// The only version of the protocol.
const MAJOR: u16 = 0;
const MINOR: u16 = 0;

/// Limit on the bytes of the capabilities. QEMU sends about 200.
const MAX_CAPABILITIES: usize = 4096;

/// The capabilities of one side that this crate uses. All are optional.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Capabilities {
    /// Limit on the descriptors of a message to the sender of this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_msg_fds: Option<u64>,
    /// Limit on the bytes of a region in a message to the sender of this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_data_xfer_size: Option<u64>,
    /// Whether a message may contain several writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) write_multiple: Option<bool>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Data {
    capabilities: Capabilities,
}

impl Capabilities {
    /// Decodes the payload of a version message, if it is valid and its version is supported.
    pub(crate) fn decode(payload: &[u8]) -> Option<Self> {
        let mut fields = Fields(payload);
        let (major, _) = (fields.u16()?, fields.u16()?);
        if major != MAJOR || fields.0.len() > MAX_CAPABILITIES {
            return None;
        }
        match fields.rest() {
            [] => Some(Self::default()),
            [text @ .., 0] => Some(serde_json::from_slice::<Data>(text).ok()?.capabilities),
            _ => None,
        }
    }

    /// Returns the server's answer to a proposal. It must contain the limits even if the client has not sent its own.
    pub(crate) fn of_server(client: &Self) -> Self {
        Self {
            max_msg_fds: Some(MAX_FDS as u64),
            max_data_xfer_size: Some(MAX_DATA as u64),
            write_multiple: client.write_multiple.filter(|multiple| *multiple),
        }
    }

    /// Returns the proposal of [`Client`](crate::Client).
    pub(crate) fn of_client() -> Self {
        Self { write_multiple: Some(true), ..Self::of_server(&Self::default()) }
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let Payload(mut payload) = Payload::default().u16(MAJOR).u16(MINOR);
        let data = Data { capabilities: self };
        // Serializing these three values can't fail.
        payload.extend(serde_json::to_vec(&data).unwrap_or_default());
        payload.push(0);
        payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &[u8]) -> Option<Capabilities> {
        let Payload(mut payload) = Payload::default().u16(MAJOR).u16(7);
        payload.extend(text);
        Capabilities::decode(&payload)
    }

    #[test]
    fn capabilities_are_optional() {
        let none = Some(Capabilities::default());
        for text in [&b""[..], b"{}\0", b"{\"capabilities\":{}}\0", b"{\"capabilities\":{\"new\":[1]},\"more\":0}\0"] {
            assert_eq!(decode(text), none, "{}", text.escape_ascii());
        }
        let qemu = b"{\"capabilities\": {\"max_data_xfer_size\": 1048576, \"max_msg_fds\": 8, \"pgsizes\": 4096, \
            \"max_dma_maps\": 65535, \"write_multiple\": true}}\0";
        let qemu = decode(qemu).unwrap();
        assert_eq!(qemu.max_msg_fds, Some(8));
        assert_eq!(qemu.write_multiple, Some(true));
        assert_eq!(Capabilities::of_server(&qemu).write_multiple, Some(true));
        let server = Capabilities::of_server(&Capabilities::default());
        assert_eq!(server.write_multiple, None);
        assert_eq!(Capabilities::decode(&server.encode()).unwrap().max_msg_fds, Some(16));
    }

    #[test]
    fn invalid_versions_are_refused() {
        let mut deep = vec![b'['; 3000];
        deep.push(0);
        for text in [
            &b"\0"[..],
            b"{}",
            b"{\0}\0",
            b"\xff\xff\0",
            b"{\"capabilities\":7}\0",
            b"{\"capabilities\":{\"max_msg_fds\":-1}}\0",
            &deep,
            &[b' '; 5000],
        ] {
            assert_eq!(decode(text), None, "{}", text.escape_ascii());
        }
        assert_eq!(Capabilities::decode(&[0; 3]), None);
        assert_eq!(Capabilities::decode(&[1, 0, 0, 0]), None);
    }
}
