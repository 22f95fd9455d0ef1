// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Registers: writes, and reads, which the driver requests by a write to `MMIO_REG_READ`. Resets start and end here.

use std::time::Duration;

use efa_hw::{
    admin::Protocol,
    aenq::AenqGroup,
    regs::{
        AqCaps, DevCtl, DevSts, EqDb, EventRingCaps, IntrMask, MmioRegRead, ReadlessResponse, Register, ResetReason,
        Version,
    },
    wire::At,
};

use super::Device;
use crate::{
    FailedReset, Host, ProtocolError, TraceEvent,
    admin::{
        reset::Reset,
        ring::{EventRing, SubmissionRing},
    },
    faults::when::Occasion,
};

/// Value of a register that does not exist.
const NO_VALUE: u32 = u32::MAX;

/// Whether a register is a doorbell or `MMIO_REG_READ`, which is traced as a read.
fn is_frequent(register: Register) -> bool {
    matches!(register, Register::AqProdDb | Register::AenqConsDb | Register::EqDb | Register::MmioRegRead)
}

impl Device {
    /// Writes a register in BAR 0.
    pub fn write_register(&mut self, host: &mut dyn Host, now: Duration, offset: u64, value: u32) {
        if !self.plugged {
            return;
        }
        let register = u16::try_from(offset).ok().and_then(|offset| Register::try_from(offset).ok());
        if let Some(register) = register.filter(|register| !is_frequent(*register)) {
            host.trace(&TraceEvent::RegisterWrite { register, value });
        }
        match register {
            None => self.report(host, ProtocolError::NoRegister { offset, value }),
            Some(Register::DevCtl) => self.control(host, now, value),
            Some(Register::MmioRegRead) => self.read_register(host, now, value),
            Some(register @ (Register::MmioRespLo | Register::MmioRespHi)) => self.registers.write(register, value),
            Some(register) if self.resets.current.is_started() => {
                self.report(host, ProtocolError::DuringReset { register, value });
            }
            Some(register) => {
                self.commands_when_fatal += u64::from(self.fatal_error && register == Register::AqProdDb);
                // A dead device ignores the write.
                if self.is_alive() {
                    self.write(host, now, register, value);
                }
            }
        }
    }

    /// Writes a register that is accessible only while no reset is in progress.
    fn write(&mut self, host: &mut dyn Host, now: Duration, register: Register, value: u32) {
        match register {
            Register::Version | Register::ControllerVersion | Register::Caps | Register::DevSts => {
                self.report(host, ProtocolError::ReadOnly { register, value });
            }
            Register::AqCaps => {
                let base = self.registers.aq_base;
                let protocol = Protocol::of(self.version());
                let ring = SubmissionRing::new(base, AqCaps::from_raw(value), protocol);
                self.check_ring(host, register, value, base, ring.is_some());
                self.admin.submission = ring;
            }
            Register::AcqCaps => {
                let base = self.registers.acq_base;
                self.admin.completion = self.event_ring(host, register, value, base);
            }
            Register::AenqCaps => {
                let base = self.registers.aenq_base;
                let ring = self.event_ring(host, register, value, base);
                self.aenq.configure(ring);
            }
            Register::AqProdDb => {
                // CAST: the register counts modulo 2^16.
                match self.admin.submit(host.now(), value as u16) {
                    // `run` executes the commands that exceed the limits of one call.
                    Ok(()) => {
                        self.execute_commands(host, now);
                    }
                    Err(error) => self.report(host, error),
                }
                self.complete_commands(host, now);
            }
            Register::AenqConsDb => {
                if !self.aenq.consume(value) {
                    self.report(host, ProtocolError::Consumer { consumed: value });
                }
            }
            Register::IntrMask => {
                self.interrupts.mask(host, IntrMask::from_raw(value).masked);
            }
            Register::EqDb => {
                let doorbell = EqDb::from_raw(value);
                match self.data.resources.eqs.ring(doorbell) {
                    Err(_) => {
                        let eqn = doorbell.eqn;
                        self.report(host, ProtocolError::NoEventQueue { eqn });
                    }
                    Ok(None) => {}
                    Ok(Some(vector)) => host.interrupt(vector),
                }
            }
            _ => self.registers.write(register, value),
        }
    }

    /// Version of the admin interface.
    pub(super) fn version(&self) -> Version {
        Version::from_raw(self.data.attributes.version)
    }

    /// Creates the ring of which a register has the geometry. An invalid one is a protocol error.
    fn event_ring(&mut self, host: &mut dyn Host, register: Register, value: u32, base: u64) -> Option<EventRing> {
        let caps = EventRingCaps::from_raw(value);
        let ring = EventRing::new(base, caps, self.config.vectors);
        self.check_ring(host, register, value, base, ring.is_some());
        ring
    }

    fn check_ring(&mut self, host: &mut dyn Host, register: Register, value: u32, base: u64, valid: bool) {
        if !valid {
            let error = ProtocolError::Ring { register, value, base };
            self.report(host, error);
        }
    }

    /// Starts or ends a reset.
    fn control(&mut self, host: &mut dyn Host, now: Duration, value: u32) {
        let control = DevCtl::from_raw(value);
        let done = now.saturating_add(Duration::from_millis(self.data.attributes.reset_ms.into()));
        match (control.dev_reset, control.aq_restart, self.resets.current) {
            (true, false, _) => {
                let fault = self.faults.hit(Occasion::Reset).unwrap_or_default();
                self.apply(host, now, Some(&fault));
                if !self.plugged {
                    return;
                }
                if fault.with_event {
                    self.post_event(host, now, AenqGroup::KeepAlive.into(), 0);
                }
                let failure = self.revive(host);
                let never_starts = fault.never_starts || failure == Some(FailedReset::NeverStarts);
                self.resets.current = Reset::Started(if never_starts { None } else { Some(done) });
                self.resets.never_ends = fault.never_ends || failure == Some(FailedReset::NeverEnds);
                let reason = control.reset_reason;
                let name = match ResetReason::try_from(reason) {
                    Ok(reason) => reason.name().to_owned(),
                    Err(_) => {
                        self.report(host, ProtocolError::ResetReason { reason });
                        reason.to_string()
                    }
                };
                host.trace(&TraceEvent::Reset { reason: name.clone() });
                self.resets.note(name);
            }
            (false, false, Reset::Started(_)) => {
                self.resets.current = Reset::Ended(if self.resets.never_ends { None } else { Some(done) });
                host.trace(&TraceEvent::ResetEnd);
            }
            _ => self.report(host, ProtocolError::Control { value }),
        }
    }

    /// Value of a register as the driver reads it.
    pub(super) fn register_value(&self, now: Duration, register: Register) -> u32 {
        let attributes = &self.data.attributes;
        match register {
            Register::Version => attributes.version,
            Register::ControllerVersion => attributes.controller_version,
            Register::Caps => attributes.caps().into_raw(),
            Register::DevSts => DevSts {
                ready: attributes.ready,
                aq_restart_in_progress: false,
                aq_restart_finished: false,
                reset_in_progress: self.resets.current.in_progress(now),
                reset_finished: self.resets.current.is_finished(now),
                fatal_error: self.fatal_error,
            }
            .into_raw(),
            // The others are write-only.
            _ => NO_VALUE,
        }
    }

    /// Answers a register read.
    fn read_register(&mut self, host: &mut dyn Host, now: Duration, value: u32) {
        let MmioRegRead { req_id, reg_off } = MmioRegRead::from_raw(value);
        let address = self.registers.mmio_resp;
        if address == 0 {
            self.report(host, ProtocolError::NoResponseAddress { offset: reg_off });
            return;
        }
        self.register_reads += 1;
        let register = Register::try_from(reg_off).ok();
        let occasion = Occasion::Register(register);
        let fault = self.faults.hit(occasion).unwrap_or_default();
        self.apply(host, now, Some(&fault));
        let actual = match register {
            Some(register) => self.register_value(now, register),
            None => {
                self.report(host, ProtocolError::NoSuchRegister { offset: reg_off });
                NO_VALUE
            }
        };
        let reg_val = fault.value.unwrap_or(actual);
        host.trace(&TraceEvent::RegisterRead {
            offset: reg_off,
            value: (!fault.silence && self.plugged).then_some(reg_val),
        });
        if fault.silence || !self.plugged {
            return;
        }
        let response = ReadlessResponse {
            req_id: req_id.wrapping_add(u16::from(fault.wrong_req_id)),
            reg_off: reg_off.wrapping_add(if fault.wrong_offset { 4 } else { 0 }),
            reg_val,
        };
        // Write the id last, as the driver polls it.
        let (id, rest) = {
            let bytes = response.encode();
            (At::<0>::load::<2, 8>(&bytes), At::<2>::load::<6, 8>(&bytes))
        };
        let written = host.dma_write(address.wrapping_add(2), &rest).and_then(|()| host.dma_write(address, &id));
        if let Err(error) = written {
            self.report(host, error);
        }
    }
}
