// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The asynchronous event notification queue (AENQ): what the device tells without being asked.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
};

use super::{
    counter::Counter,
    registers::Registers, //
};
use crate::{
    hw::{
        aenq::{
            self,
            AenqEntry,
            AenqFlags,
            AenqGroup, //
        },
        regs::{
            EventRingCaps,
            Register, //
        },
    },
    sys::{
        barrier::dma_rmb,
        dma::Entries,
        log::Hex,
        ratelimit::RateLimit, //
    },
};

/// Entries in the ring. The depth that Linux's C driver uses.
const DEPTH: u16 = 16;

/// Binary logarithm of [`DEPTH`].
const DEPTH_SHIFT: u32 = DEPTH.trailing_zeros();

/// The groups of events that the driver wants, and that every device has to support.
pub(super) const GROUPS: u32 = AenqGroup::FatalError.mask()
    | AenqGroup::Warning.mask()
    | AenqGroup::Notification.mask()
    | AenqGroup::KeepAlive.mask();

/// The asynchronous event queue.
#[pin_data]
pub(super) struct Aenq {
    dev: ARef<Device>,
    registers: Arc<Registers>,
    entries: Entries<{ AenqEntry::SIZE }>,
    keep_alives: Counter,
    #[pin]
    messages: RateLimit,
    /// Events ever consumed; their entry and phase follow from it. Only the interrupt handler uses
    /// it, which runs on one CPU at a time.
    consumed: Atomic<u32>,
}

impl Aenq {
    /// Makes a ring that the device does not know of before [`Self::start`].
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(dev: &Device<Bound>, registers: &Arc<Registers>) -> Result<Arc<Self>> {
        let entries = Entries::zeroed(dev, u32::from(DEPTH))?;

        Arc::pin_init(
            pin_init!(Self {
                dev: dev.into(),
                registers: registers.clone(),
                entries,
                keep_alives: Counter::default(),
                messages <- RateLimit::new(),
                consumed: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Gives the ring to the device, which has it until its next reset, and reports nothing until
    /// groups are enabled.
    pub(super) fn start(&self, msix_vector: u8) {
        self.registers.write_address(
            Register::AenqBaseLo,
            Register::AenqBaseHi,
            self.entries.dma_address(),
        );
        let caps = EventRingCaps {
            depth: DEPTH,
            entry_size: AenqEntry::SIZE as u8,
            msix_vector,
        };
        self.registers.write(Register::AenqCaps, caps.into_raw());
        // Nothing is consumed yet: the whole ring is the device's.
        self.registers.write(Register::AenqConsDb, 0);
    }

    /// Returns how many keep-alive events there were.
    pub(super) fn keep_alives(&self) -> u64 {
        self.keep_alives.get()
    }

    /// Handles at most one ring of events: a device can't keep the caller here. To be called by the
    /// interrupt handler only.
    pub(super) fn handle_events(&self) {
        let before = self.consumed.load(Relaxed);
        let mut consumed = before;

        for _ in 0..DEPTH {
            let flags = self.entries.read_byte::<{ aenq::PHASE_OFFSET }>(consumed);
            if AenqFlags::from_raw(flags).phase != (consumed >> DEPTH_SHIFT & 1 == 0) {
                break;
            }

            // The device writes the phase last.
            dma_rmb();
            self.handle(&AenqEntry::decode(&self.entries.read(consumed)));
            consumed = consumed.wrapping_add(1);
        }

        if consumed != before {
            self.consumed.store(consumed, Relaxed);
            self.registers.write(Register::AenqConsDb, consumed);
        }
    }

    fn handle(&self, event: &AenqEntry) {
        let group = match AenqGroup::try_from(event.group) {
            Ok(AenqGroup::KeepAlive) => {
                self.keep_alives.increment();
                return;
            }
            Ok(group) => group.name(),
            Err(_) => "an event of an unknown group",
        };
        if self.messages.allows() {
            dev_err!(
                &self.dev,
                "The device reports {} (group {}, syndrome {})\n",
                group,
                Hex(event.group.into()),
                Hex(event.syndrome.into())
            );
        }
    }
}
