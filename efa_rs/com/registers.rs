// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! BAR 0: registers that are written by MMIO and read by DMA.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    io::{
        poll::read_poll_timeout,
        Io, //
    },
    new_mutex,
    pci::Bar,
    prelude::*,
    sync::Mutex,
    time::Delta, //
};

use crate::{
    hw::regs::{
        MmioRegRead,
        ReadlessResponse,
        Register, //
    },
    sys::{
        atomic::{
            AtomicU32,
            Relaxed, //
        },
        dma::Entries,
        log::{
            Hex,
            Limited, //
        }, //
    },
};

/// Bytes of BAR 0 that have registers: up to the end of [`Register::EqDb`].
pub(crate) const REGISTERS_SIZE: usize = 0x6c;

/// Timeout of a read in microseconds, unless the device gives a hint. The same as in Linux's C
/// driver.
const READ_TIMEOUT_US: u32 = 50_000;

/// Bounds of the read timeout that a hint sets, in microseconds. The lower one is the default. With
/// the upper one, a dead device delays its removal by a second or two.
const MIN_READ_TIMEOUT_US: u32 = READ_TIMEOUT_US;
const MAX_READ_TIMEOUT_US: u32 = 1_000_000;

/// Interval at which the response is polled.
const READ_POLL_INTERVAL: Delta = Delta::from_micros(10);

/// The device does not answer reads by MMIO. A read names a register and a request id; the device
/// writes both and the value to host memory whose address it was given.
#[pin_data]
pub(crate) struct Registers<'bound> {
    bar: Bar<'bound, REGISTERS_SIZE>,
    read_timeout_us: AtomicU32,
    #[pin]
    messages: Limited<'bound>,
    #[pin]
    reader: Mutex<Reader<'bound>>,
}

struct Reader<'bound> {
    response: Entries<'bound, { ReadlessResponse::SIZE }>,
    request_id: u16,
}

impl<'bound> Registers<'bound> {
    /// Takes over the registers. They can be read after [`Self::announce_response`].
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(
        dev: &'bound Device<Bound>,
        bar: Bar<'bound, REGISTERS_SIZE>,
    ) -> Result<impl PinInit<Self> + use<'bound>> {
        let response = Entries::zeroed(dev, 1)?;
        Ok(pin_init!(Self {
            bar,
            read_timeout_us: AtomicU32::new(READ_TIMEOUT_US),
            messages <- Limited::new(dev),
            reader <- new_mutex!(Reader {
                response,
                request_id: 0,
            }),
        }))
    }

    /// Writes the address for read responses to the device, which loses it during a reset.
    pub(super) fn announce_response(&self) {
        let address = self.reader.lock().response.dma_address();

        self.write(Register::MmioRespHi, high(address));
        self.write(Register::MmioRespLo, low(address));
    }

    /// Sets the timeout of a read in milliseconds, clamped to its bounds; 0 is the default.
    pub(super) fn set_read_timeout(&self, millis: u16) {
        let micros = u32::from(millis) * 1000;
        self.read_timeout_us.store(
            micros.clamp(MIN_READ_TIMEOUT_US, MAX_READ_TIMEOUT_US),
            Relaxed,
        );
    }

    /// Writes a register. Earlier writes to memory become visible to the device first.
    // Inlined, because the offset is checked at compile time.
    #[inline(always)]
    pub(crate) fn write(&self, register: Register, value: u32) {
        (&self.bar).write32(value, usize::from(register as u16));
    }

    /// Writes a pair of registers that hold a DMA address.
    #[inline(always)]
    pub(super) fn write_address(&self, lo: Register, hi: Register, address: u64) {
        self.write(lo, low(address));
        self.write(hi, high(address));
    }

    /// # Errors
    ///
    /// - [`ETIME`] if the device does not answer.
    /// - [`EIO`] if it answers for another register.
    pub(crate) fn read(&self, register: Register) -> Result<u32> {
        let mut reader = self.reader.lock();
        reader.request_id = reader.request_id.wrapping_add(1);
        let request_id = reader.request_id;

        // An id that differs from the expected one.
        let stale = ReadlessResponse {
            req_id: !request_id,
            ..ReadlessResponse::default()
        };
        reader.response.write(0, &stale.encode());

        let request = MmioRegRead {
            req_id: request_id,
            reg_off: register.into(),
        };
        self.write(Register::MmioRegRead, request.into_raw());

        let timeout_us = self.read_timeout_us.load(Relaxed);
        let answer = || {
            // The device writes the id last, and the whole response is read as one word.
            let response = ReadlessResponse::decode(&reader.response.read(0));
            (response.req_id == request_id).then_some(response)
        };
        let polled = read_poll_timeout(
            || Ok(answer()),
            Option::is_some,
            READ_POLL_INTERVAL,
            Delta::from_micros(i64::from(timeout_us)),
        );
        // The CPU may have run something else between the last poll and the look at the clock.
        let Some(response) = polled.ok().flatten().or_else(answer) else {
            self.messages.error(fmt!(
                "Reading register timed out: no answer for {} within {} us",
                register.name(),
                timeout_us
            ));
            return Err(ETIME);
        };
        if response.reg_off != u16::from(register) {
            self.messages.error(fmt!(
                "Reading register failed: {} was answered for register {}",
                register.name(),
                Hex(response.reg_off.into())
            ));
            return Err(EIO);
        }
        Ok(response.reg_val)
    }
}

/// Returns the upper 32 bits.
#[inline]
fn high(address: u64) -> u32 {
    // CAST: Only the upper half is left.
    (address >> 32) as u32
}

/// Returns the lower 32 bits.
#[inline]
fn low(address: u64) -> u32 {
    // CAST: Truncated on purpose.
    address as u32
}
