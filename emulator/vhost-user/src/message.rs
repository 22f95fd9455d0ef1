// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The messages between a kernel and a PCI function that is a virtio device.

/// Bytes of a message before its data.
pub(crate) const HEADER: usize = 16;

/// Bytes of an interrupt's message.
pub(crate) const INTERRUPT: usize = HEADER + 4;

const INTERRUPT_BY_MESSAGE: u8 = 7;

/// What a kernel wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    ReadConfig,
    WriteConfig,
    ReadBar,
    WriteBar,
    /// All bytes get the same value.
    FillBar,
}

/// A request of a kernel, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) operation: Operation,
    pub(crate) bar: u8,
    /// Bytes that are read or written.
    pub(crate) size: u32,
    pub(crate) address: u64,
}

impl Request {
    /// Of a header; none if it asks for nothing that there is.
    pub(crate) fn decode(header: [u8; HEADER]) -> Option<Self> {
        let [op, bar, _, _, s0, s1, s2, s3, address @ ..] = header;
        let operation = match op {
            1 => Operation::ReadConfig,
            2 => Operation::WriteConfig,
            3 => Operation::ReadBar,
            4 => Operation::WriteBar,
            5 => Operation::FillBar,
            _ => return None,
        };
        Some(Self {
            operation,
            bar,
            size: u32::from_le_bytes([s0, s1, s2, s3]),
            address: u64::from_le_bytes(address),
        })
    }
}

/// An interrupt: a write of 32 bits to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interrupt {
    pub(crate) address: u64,
    pub(crate) data: u32,
}

impl Interrupt {
    pub(crate) fn encode(self) -> [u8; INTERRUPT] {
        let mut message = [0; INTERRUPT];
        message[0] = INTERRUPT_BY_MESSAGE;
        message[4..8].copy_from_slice(&4_u32.to_le_bytes());
        message[8..16].copy_from_slice(&self.address.to_le_bytes());
        message[HEADER..].copy_from_slice(&self.data.to_le_bytes());
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_four_fields() {
        let header = [4, 2, 0, 0, 8, 0, 0, 0, 0x10, 0x32, 0, 0, 0, 0, 0, 0];
        let request = Request {
            operation: Operation::WriteBar,
            bar: 2,
            size: 8,
            address: 0x3210,
        };
        assert_eq!(Request::decode(header), Some(request));
    }

    #[test]
    fn what_a_function_sends_is_no_request() {
        for operation in [0, 6, 7, 8, 255] {
            let mut header = [0; HEADER];
            header[0] = operation;
            assert_eq!(Request::decode(header), None);
        }
    }

    #[test]
    fn an_interrupt_says_what_is_written_where() {
        let interrupt = Interrupt {
            address: 0x1_0000_00a0,
            data: 33,
        };
        let message = [
            7, 0, 0, 0, 4, 0, 0, 0, 0xa0, 0, 0, 0, 1, 0, 0, 0, 33, 0, 0, 0,
        ];
        assert_eq!(interrupt.encode(), message);
    }
}
