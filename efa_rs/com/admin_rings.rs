// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The two rings of the admin queue, in memory that the device accesses.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    epoch::Epoch,
    lent::Lent,
    registers::Registers, //
};
use crate::{
    hw::{
        admin::{
            self,
            AcqEntry,
            AcqFlags,
            AcqHeader,
            AqEntry,
            AqRequest,
            Protocol,
            AQ_BLOCK_SIZE, //
        },
        checksum,
        regs::{
            AqCaps,
            EventRingCaps,
            Register,
            Version, //
        },
    },
    sys::dma::Entries,
};

/// Number of entries in each ring, and limit on commands in flight. Linux's C driver uses the same.
pub(super) const DEPTH: u16 = 32;

pub(super) const DEPTH_SHIFT: u32 = DEPTH.trailing_zeros();

/// First version of the admin interface whose completions have checksums.
const CHECKSUM_VERSION: Version = Version { major: 0, minor: 2 };

/// The submission and completion rings. The numbers of entries are running counts, which wrap.
pub(super) struct Rings<'bound> {
    /// The blocks of all entries; those of one entry are adjacent.
    submissions: Lent<'bound, Entries<'bound, AQ_BLOCK_SIZE>>,
    completions: Lent<'bound, Entries<'bound, { size_of::<AcqEntry>() }>>,
    protocol: Protocol,
    has_checksums: bool,
}

impl<'bound> Rings<'bound> {
    /// Allocates rings that the device does not use before [`Self::start`].
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(version: Version, epoch: &Arc<Epoch<'bound>>) -> Result<Self> {
        let protocol = Protocol::of(version);
        Ok(Self {
            submissions: ring(usize::from(DEPTH) * protocol.blocks(), epoch)?,
            completions: ring(usize::from(DEPTH), epoch)?,
            protocol,
            has_checksums: version >= CHECKSUM_VERSION,
        })
    }

    /// Gives the rings to the device, which uses them until its next reset.
    pub(super) fn start(&self, registers: &Registers<'_>, msix_vector: u8) {
        self.submissions.loan().lend_until_stop();
        self.completions.loan().lend_until_stop();

        let address = self.submissions.dma_address();
        registers.write_address(Register::AqBaseLo, Register::AqBaseHi, address);
        let caps = AqCaps {
            depth: DEPTH,
            // CAST: At most 128.
            entry_size: self.protocol.entry_size() as u16,
        };
        registers.write(Register::AqCaps, caps.into_raw());

        let address = self.completions.dma_address();
        registers.write_address(Register::AcqBaseLo, Register::AcqBaseHi, address);
        let caps = EventRingCaps {
            depth: DEPTH,
            entry_size: size_of::<AcqEntry>() as u8,
            msix_vector,
        };
        registers.write(Register::AcqCaps, caps.into_raw());
    }

    #[inline]
    pub(super) fn submit(&self, number: u16, id: u16, request: &AqRequest) {
        let (index, phase) = (u32::from(number), phase(number));
        match self.protocol {
            Protocol::V1 => self.submissions.write(index, &request.encode_v1(id, phase)),
            Protocol::V2 => {
                let entry = AqEntry::new(Protocol::V2, request, id, phase);
                // CAST: Each entry has two blocks.
                let first = index * Protocol::V2.blocks() as u32;
                for (index, block) in (first..).zip(entry.blocks()) {
                    self.submissions.write(index, &block);
                }
            }
        }
    }

    /// Returns the completion `number`, if the device has written it.
    #[inline]
    pub(super) fn completion(&self, number: u16) -> Option<AcqEntry> {
        let index = u32::from(number);
        let flags = self
            .completions
            .read_byte::<{ admin::ACQ_PHASE_OFFSET }>(index);
        if AcqFlags::from_raw(flags).phase != phase(number) {
            return None;
        }
        Some(self.completions.read(index))
    }

    /// Returns whether the checksum of a completion is correct. True if completions have none.
    #[inline]
    pub(super) fn is_intact(&self, entry: &AcqEntry) -> bool {
        !self.has_checksums || AcqHeader::of(entry).checksum == checksum::of_entry(entry)
    }
}

/// Returns the phase of an entry. It is set in the first pass over the ring and toggles each pass.
#[inline]
fn phase(number: u16) -> bool {
    number >> DEPTH_SHIFT & 1 == 0
}

/// Allocates a ring that the device does not use yet.
///
/// # Errors
///
/// - [`ENOMEM`] if there is no memory.
fn ring<'bound, const N: usize>(
    count: usize,
    epoch: &Arc<Epoch<'bound>>,
) -> Result<Lent<'bound, Entries<'bound, N>>> {
    // CAST: At most twice `DEPTH`.
    let ring = Entries::zeroed(epoch.device.dev(), count as u32)?;
    Lent::new(epoch, &"the admin queue", Arc::new(ring, GFP_KERNEL)?)
}
