// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! PCI configuration space as data: the bytes after reset, and the bits of them that software may write.

use efa_hw::pci;

use crate::bar::Bars;

/// Bytes of a PCI Express function's configuration space.
pub(crate) const SIZE: usize = 4096;

// Offsets of registers, and their bits.
const COMMAND: usize = 0x04;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_BUS_MASTER: u16 = 1 << 2;
const COMMAND_PARITY: u16 = 1 << 6;
const COMMAND_SERR: u16 = 1 << 8;
const COMMAND_INTX_DISABLE: u16 = 1 << 10;
const STATUS_CAPABILITIES: u16 = 1 << 4;
const CLASS_ETHERNET: u32 = 0x0200;
const BAR0: usize = 0x10;
const BAR_64_BIT: u32 = 0b10 << 1;
const BAR_PREFETCHABLE: u32 = 1 << 3;

/// Power management capability.
const POWER: usize = 0x40;
const POWER_CONTROL: usize = POWER + 0x04;
const POWER_VERSION_3: u16 = 0x0003;
const POWER_STATE: u8 = 0b11;
const D0: u8 = 0;
const D3_HOT: u8 = 3;

/// PCI Express capability. Its offset and that of MSI-X are the same as in Amazon's other functions.
const EXPRESS: usize = 0x70;
const DEVICE_CONTROL: usize = EXPRESS + 0x08;
const LINK_CAPABILITIES: usize = EXPRESS + 0x0c;
const LINK_STATUS: usize = EXPRESS + 0x12;
const LINK_CAPABILITIES_2: usize = EXPRESS + 0x2c;
const EXPRESS_VERSION_2_ENDPOINT: u16 = 0x0002;
const MAX_PAYLOAD_256: u32 = 1;
const ROLE_BASED_ERROR_REPORTING: u32 = 1 << 15;
const FUNCTION_LEVEL_RESET: u32 = 1 << 28;
const RELAXED_ORDERING: u16 = 1 << 4;
const NO_SNOOP: u16 = 1 << 11;
const MAX_READ_REQUEST_512: u16 = 2 << 12;
const INITIATE_FUNCTION_LEVEL_RESET: u16 = 1 << 15;
const LINK_WIDTH_16: u16 = 16 << 4;
/// Gbit/s of 16 lanes, for each speed of PCI Express from 2.5 GT/s on.
const LINK_GBPS: [u16; 6] = [32, 64, 126, 252, 504, 968];

/// MSI-X capability.
const MSIX: usize = 0xb0;
const MSIX_TABLE: usize = MSIX + 0x04;
const MSIX_PENDING: usize = MSIX + 0x08;
const MSIX_ENABLE: u16 = 1 << 15;
const MSIX_FUNCTION_MASK: u16 = 1 << 14;

/// Advanced error reporting, an extended capability. No PCI errors occur here, so its status registers are zero.
const ERRORS: usize = 0x100;
const ALL_UNCORRECTABLE: u32 = 0x007f_f030;
const FATAL_UNCORRECTABLE: u32 = 0x0046_2030;
const ALL_CORRECTABLE: u32 = 0x0000_f1c1;
const ADVISORY_NON_FATAL: u32 = 0x0000_2000;

/// Maximum number of MSI-X vectors: it fills the page of the table, and is a valid table size.
pub const MAX_MSIX_VECTORS: u16 = 0x1000 / 16;

/// A function's configuration space.
#[derive(Clone, Debug)]
pub(crate) struct ConfigSpace {
    bytes: Box<[u8; SIZE]>,
    writable: Box<[u8; SIZE]>,
    after_reset: Box<[u8; SIZE]>,
}

impl ConfigSpace {
    /// Creates the space of device ID `device`, for `gbps` Gbit/s and `msix_vectors` (1 to [`MAX_MSIX_VECTORS`]) vectors.
    pub(crate) fn new(device: u16, gbps: u16, bars: Bars, msix_vectors: u16) -> Self {
        let id = both(pci::VENDOR, device);
        let command = COMMAND_MEMORY | COMMAND_BUS_MASTER | COMMAND_PARITY | COMMAND_SERR | COMMAND_INTX_DISABLE;
        let capabilities = MAX_PAYLOAD_256 | ROLE_BASED_ERROR_REPORTING | FUNCTION_LEVEL_RESET;
        let control = RELAXED_ORDERING | NO_SNOOP | MAX_READ_REQUEST_512;
        // The slowest link that is fast enough. Programs such as NIXL take its speed for the limit of the device.
        let slower = LINK_GBPS.iter().filter(|link| **link < gbps).count();
        // CAST: The table has six entries.
        let speed = slower.min(LINK_GBPS.len() - 1) as u16 + 1;
        let link = speed | LINK_WIDTH_16;
        let msix = MSIX_ENABLE | MSIX_FUNCTION_MASK;
        let indicator = u32::from(bars.msix().index());
        let mut new =
            Self { bytes: Box::new([0; SIZE]), writable: Box::new([0; SIZE]), after_reset: Box::new([0; SIZE]) };
        // Registers of 32 bits: offset, value and writable bits.
        for (at, value, writable) in [
            (0x00, id, 0),
            (COMMAND, both(0, STATUS_CAPABILITIES), command.into()),
            // Revision and class.
            (0x08, CLASS_ETHERNET << 16, 0),
            // Cache line size.
            (0x0c, 0, 0xff),
            // Subsystem.
            (0x2c, id, 0),
            // The first capability.
            (0x34, POWER as u32, 0),
            // Interrupt line.
            (0x3c, 0, 0xff),
            // States D0 and D3hot. The transition from D3hot to D0 resets the function.
            (POWER, capability(0x01, EXPRESS, POWER_VERSION_3), 0),
            (POWER_CONTROL, 0, POWER_STATE.into()),
            (EXPRESS, capability(0x10, MSIX, EXPRESS_VERSION_2_ENDPOINT), 0),
            (EXPRESS + 0x04, capabilities, 0),
            (DEVICE_CONTROL, control.into(), (!INITIATE_FUNCTION_LEVEL_RESET).into()),
            (LINK_CAPABILITIES, link.into(), 0),
            (LINK_STATUS - 2, both(0, link), 0),
            // One bit for each supported speed, from bit 1 on.
            (LINK_CAPABILITIES_2, (2 << speed) - 2, 0),
            (MSIX, capability(0x11, 0, msix_vectors - 1), both(0, msix)),
            // The offsets are below 4 GiB and multiples of 8; the low three bits name the BAR.
            (MSIX_TABLE, bars.msix_table() as u32 | indicator, 0),
            (MSIX_PENDING, bars.msix_pending() as u32 | indicator, 0),
            // ID 1, version 2.
            (ERRORS, 0x0002_0001, 0),
            // Mask and severity of uncorrectable errors, and mask of correctable ones.
            (ERRORS + 0x08, 0, ALL_UNCORRECTABLE),
            (ERRORS + 0x0c, FATAL_UNCORRECTABLE, ALL_UNCORRECTABLE),
            (ERRORS + 0x14, ADVISORY_NON_FATAL, ALL_CORRECTABLE),
        ] {
            new.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            new.writable[at..at + 4].copy_from_slice(&writable.to_le_bytes());
        }
        for bar in bars.iter() {
            let at = BAR0 + 4 * usize::from(bar.index());
            let kind = BAR_64_BIT | BAR_PREFETCHABLE;
            new.bytes[at..at + 4].copy_from_slice(&kind.to_le_bytes());
            // Software finds a BAR's size by writing ones: the bits below the size stay as they are.
            let address = !(bars.size(bar) - 1);
            new.writable[at..at + 8].copy_from_slice(&address.to_le_bytes());
        }
        new.after_reset = new.bytes.clone();
        new
    }

    /// Reads bytes. Those beyond the end are all ones, as from a function that does not respond.
    pub(crate) fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        for (byte, value) in data.iter_mut().zip(&self.bytes[index(offset)..]) {
            *byte = *value;
        }
    }

    /// Writes the writable bits. Returns true if this resets the function, by a function level reset or a transition from
    /// D3hot to D0.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> bool {
        let first = index(offset);
        let power = self.power_state();
        let registers = self.bytes[first..].iter_mut().zip(&self.writable[first..]);
        for ((value, mask), byte) in registers.zip(data) {
            *value = *value & !mask | byte & mask;
        }
        let resumes = power == D3_HOT && self.power_state() == D0;
        if ![D0, D3_HOT].contains(&self.power_state()) {
            // The function does not support this state, so it stays in the old one.
            self.bytes[POWER_CONTROL] = self.bytes[POWER_CONTROL] & !POWER_STATE | power;
        }
        let [_, initiate] = INITIATE_FUNCTION_LEVEL_RESET.to_le_bytes();
        let initiates = (DEVICE_CONTROL + 1)
            .checked_sub(first)
            .and_then(|at| data.get(at))
            .is_some_and(|byte| byte & initiate != 0);
        resumes || initiates
    }

    /// Sets every register to its value after reset.
    pub(crate) fn reset(&mut self) {
        self.bytes.clone_from(&self.after_reset);
    }

    /// Whether the function may read and write memory, and signal interrupts.
    pub(crate) fn bus_master(&self) -> bool {
        self.is_on() && u16::from_le_bytes([self.bytes[COMMAND], self.bytes[COMMAND + 1]]) & COMMAND_BUS_MASTER != 0
    }

    /// Whether the function accepts accesses to its BARs.
    pub(crate) fn is_on(&self) -> bool {
        self.power_state() == D0
    }

    fn power_state(&self) -> u8 {
        self.bytes[POWER_CONTROL] & POWER_STATE
    }
}

/// Returns a register of two halves.
fn both(low: u16, high: u16) -> u32 {
    u32::from(low) | (u32::from(high) << 16)
}

/// Returns the first register of a capability, with the offset of the next one.
fn capability(id: u8, next: usize, more: u16) -> u32 {
    // CAST: capabilities are in the first 256 bytes.
    both(u16::from_le_bytes([id, next as u8]), more)
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).map_or(SIZE, |offset| offset.min(SIZE))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::bar::Bar;

    const ALL: Bars = Bars { llq: 64 << 20, doorbells: 2 << 20, missing: None };

    /// The first 256 bytes as `lspci -F` reads them.
    fn dump(config: &ConfigSpace) -> String {
        let mut text = String::from("00:00.0 EFA\n");
        for row in (0..256).step_by(16) {
            write!(text, "{row:02x}:").unwrap();
            for byte in &config.bytes[row..row + 16] {
                write!(text, " {byte:02x}").unwrap();
            }
            text.push('\n');
        }
        text
    }

    #[test]
    fn is_as_lspci_has_confirmed() {
        let config = ConfigSpace::new(0xefa2, 200, ALL, 33);
        assert_eq!(dump(&config), include_str!("../tests/efa2.lspci"));
        // lspci needs root to read these: an advanced error reporting capability, and no other.
        let mut errors = [0; SIZE - 256];
        errors[..4].copy_from_slice(&[0x01, 0x00, 0x02, 0x00]);
        errors[0x0c..0x10].copy_from_slice(&[0x30, 0x20, 0x46, 0x00]);
        errors[0x15] = 0x20;
        assert_eq!(config.bytes[256..], errors);
    }

    #[test]
    fn the_link_is_as_fast_as_the_device() {
        let links = [(0, 1), (100, 3), (150, 4), (200, 4), (400, 5), (800, 6)];
        for (gbps, speed) in links.into_iter().chain([(u16::MAX, 6)]) {
            let config = ConfigSpace::new(0xefa2, gbps, ALL, 1);
            for at in [LINK_CAPABILITIES, LINK_STATUS] {
                assert_eq!(config.bytes[at..][..2], [speed, 1], "{gbps}");
            }
            // All speeds up to its own.
            let speeds = (2 << speed) - 2;
            assert_eq!(config.bytes[LINK_CAPABILITIES_2], speeds, "{gbps}");
        }
    }

    /// BARs that exist report their sizes, and one of them has MSI-X.
    #[test]
    fn bars_report_their_size() {
        let all = [Bar::Registers, Bar::Llq, Bar::Doorbells];
        for missing in all.map(Some).into_iter().chain([None]) {
            let bars = Bars { missing, ..ALL };
            let mut config = ConfigSpace::new(0xefa2, 200, bars, 1);
            let msix = match missing {
                Some(Bar::Registers) => Bar::Doorbells,
                _ => Bar::Registers,
            };
            for at in [MSIX_TABLE, MSIX_PENDING] {
                assert_eq!(config.bytes[at] & 7, msix.index(), "{missing:?}");
            }
            for bar in all {
                let register = (BAR0 + 4 * usize::from(bar.index())) as u64;
                assert!(!config.write(register, &[0xff; 8]));
                let mut found = [0xaa; 8];
                config.read(register, &mut found);
                // Its type is 64-bit, prefetchable memory.
                let size = !(bars.size(bar) - 1) | 0b1100;
                let expected = if missing == Some(bar) { 0 } else { size };
                let found = u64::from_le_bytes(found);
                assert_eq!(found, expected, "{bar:?} without {missing:?}");
            }
        }
    }

    #[test]
    fn only_writable_bits_change() {
        let mut config = ConfigSpace::new(0xefa2, 200, ALL, 4);
        let before = config.bytes.clone();
        assert!(!config.write(0, &[0xff; DEVICE_CONTROL]));
        assert!(!config.is_on());
        assert!(!config.write(MSIX as u64, &[0xff; SIZE - MSIX]));
        for (at, (now, then)) in config.bytes.iter().zip(before.iter()).enumerate() {
            let mask = config.writable[at];
            assert_eq!(now & !mask, then & !mask, "byte {at:#x}");
            if !(DEVICE_CONTROL..MSIX).contains(&at) {
                assert_eq!(now & mask, mask, "byte {at:#x}");
            }
        }
        assert_eq!(config.bytes[..COMMAND], before[..COMMAND]);
        config.reset();
        assert_eq!(config.bytes, before);
    }

    /// Bus mastering follows the command register while the function has power, and power-on requests a reset.
    #[test]
    fn bus_master_and_power() {
        let mut config = ConfigSpace::new(0xefa2, 200, ALL, 4);
        let state = |config: &mut ConfigSpace, state: u8| {
            let resets = config.write(POWER_CONTROL as u64, &[state, 0]);
            (resets, config.power_state())
        };
        for (command, expected) in [(0, false), (COMMAND_MEMORY, false), (COMMAND_BUS_MASTER, true)] {
            config.write(COMMAND as u64, &command.to_le_bytes());
            assert_eq!(config.bus_master(), expected);
        }
        assert_eq!(state(&mut config, D0), (false, D0));
        // Unsupported states are ignored.
        assert_eq!(state(&mut config, 1), (false, D0));
        assert_eq!(state(&mut config, D3_HOT), (false, D3_HOT));
        assert_eq!(state(&mut config, 2), (false, D3_HOT));
        assert!(!config.is_on() && !config.bus_master());
        assert_eq!(state(&mut config, D0), (true, D0));
        assert_eq!(config.bytes[POWER_CONTROL] & (1 << 3), 0, "No_Soft_Reset");
    }

    #[test]
    fn a_function_level_reset_is_requested_once() {
        let mut config = ConfigSpace::new(0xefa2, 200, ALL, 4);
        let control = INITIATE_FUNCTION_LEVEL_RESET.to_le_bytes();
        assert!(config.write(DEVICE_CONTROL as u64, &control));
        let mut found = [0; 2];
        config.read(DEVICE_CONTROL as u64, &mut found);
        assert_eq!(found[1] & control[1], 0);
        assert!(!config.write(DEVICE_CONTROL as u64, &[0; 2]));
    }

    #[test]
    fn beyond_the_end_is_nothing() {
        let mut config = ConfigSpace::new(0xefa2, 200, ALL, 4);
        for (offset, expected) in
            [(SIZE as u64 - 1, [0, 0xff, 0xff, 0xff]), (SIZE as u64, [0xff; 4]), (u64::MAX - 1, [0xff; 4])]
        {
            let mut found = [0; 4];
            config.read(offset, &mut found);
            assert_eq!(found, expected);
            config.write(offset, &[0xff; 4]);
        }
    }
}
