// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The asynchronous event notification queue (AENQ): events that the device reports.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    epoch::Epoch,
    health::Cause,
    lent::Lent, //
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
        atomic::{
            AtomicU32,
            Relaxed, //
        },
        dma::Entries,
        log::Hex,
        trace, //
    },
};

/// Number of entries in the ring. Linux's C driver uses the same.
const DEPTH: u16 = 16;

/// The groups of events that the driver wants, and that every device has to support.
pub(super) const GROUPS: u32 = AenqGroup::FatalError.mask()
    | AenqGroup::Warning.mask()
    | AenqGroup::Notification.mask()
    | AenqGroup::KeepAlive.mask();

#[pin_data]
pub(super) struct Aenq<'bound> {
    epoch: Arc<Epoch<'bound>>,
    entries: Lent<'bound, Entries<'bound, { AenqEntry::SIZE }>>,
    /// Number of events consumed, which determines the next entry and its phase. Only
    /// [`Self::handle_events`] changes it.
    consumed: AtomicU32,
}

impl<'bound> Aenq<'bound> {
    /// Creates a ring that the device does not use before [`Self::start`].
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(epoch: &Arc<Epoch<'bound>>) -> Result<Arc<Self>> {
        let dev = epoch.device.dev();
        let entries = Arc::new(Entries::zeroed(dev, u32::from(DEPTH))?, GFP_KERNEL)?;

        Arc::pin_init(
            try_pin_init!(Self {
                epoch: epoch.clone(),
                entries: Lent::new(epoch, &"the event queue", entries)?,
                consumed: AtomicU32::new(0),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Gives the ring to the device until its next reset. The device reports no events until groups
    /// are enabled.
    pub(super) fn start(&self, msix_vector: u8) {
        self.entries.loan().lend_until_stop();
        let (registers, address) = (&self.epoch.device.registers, self.entries.dma_address());
        registers.write_address(Register::AenqBaseLo, Register::AenqBaseHi, address);
        let caps = EventRingCaps {
            depth: DEPTH,
            entry_size: AenqEntry::SIZE as u8,
            msix_vector,
        };
        registers.write(Register::AenqCaps, caps.into_raw());
        // No event is consumed yet, so that the device may fill the whole ring.
        registers.write(Register::AenqConsDb, 0);
    }

    /// Returns whether the device has written the event with this number.
    fn has(&self, number: u32) -> bool {
        let flags = self.entries.read_byte::<{ aenq::PHASE_OFFSET }>(number);
        // Set in the first pass over the ring, and toggled each pass.
        AenqFlags::from_raw(flags).phase == (number & u32::from(DEPTH) == 0)
    }

    /// Returns the number of the next event, if it has been written.
    pub(super) fn pending(&self) -> Option<u32> {
        let number = self.consumed.load(Relaxed);
        self.has(number).then_some(number)
    }

    /// Handles at most [`DEPTH`] events, so that a faulty device can't keep the caller busy. Only
    /// one task or handler may call this at a time.
    pub(super) fn handle_events(&self) {
        let before = self.consumed.load(Relaxed);
        let mut consumed = before;

        for _ in 0..DEPTH {
            if !self.has(consumed) {
                break;
            }

            self.handle(&AenqEntry::decode(&self.entries.read(consumed)));
            consumed = consumed.wrapping_add(1);
        }

        if consumed != before {
            self.consumed.store(consumed, Relaxed);
            let registers = &self.epoch.device.registers;
            registers.write(Register::AenqConsDb, consumed);
        }
    }

    fn handle(&self, event: &AenqEntry) {
        let device = &self.epoch.device;
        trace::event(device.dev(), event.group, event.syndrome);
        let group = match AenqGroup::try_from(event.group) {
            Ok(AenqGroup::KeepAlive) => {
                device.statistics.keep_alive_rcvd.increment();
                return;
            }
            Ok(group) => group.name(),
            Err(_) => "an event of an unknown group",
        };
        device.messages.events.error(fmt!(
            "The device reports {} (group {}, syndrome {})",
            group,
            Hex(event.group.into()),
            Hex(event.syndrome.into())
        ));
        // Reported after the message, so that the log shows the cause before the effect.
        if event.group == AenqGroup::FatalError as u16 {
            self.epoch.report(Cause::FatalError);
        }
    }
}
