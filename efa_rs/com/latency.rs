// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How long commands take: a histogram for each opcode.

use kernel::{
    fmt,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    time::Delta, //
};

use crate::hw::admin::Opcode;

/// Opcodes are below this.
const OPCODES: usize = 32;

/// Class N is for latencies below 2^N microseconds; the last one also for all above: 8 s.
const CLASSES: usize = 24;

/// Counts of commands by opcode and by class of latency.
pub(crate) struct Latencies([[Atomic<u32>; CLASSES]; OPCODES]);

impl Default for Latencies {
    fn default() -> Self {
        Self([const { [const { Atomic::new(0) }; CLASSES] }; OPCODES])
    }
}

impl Latencies {
    /// Counts a command.
    pub(super) fn count(&self, opcode: Opcode, latency: Delta) {
        // CAST: 0 to 64.
        let class = (i64::BITS - latency.as_micros_ceil().leading_zeros()) as usize;
        let counts = self.0.get(usize::from(u8::from(opcode)));
        if let Some(count) = counts.and_then(|counts| counts.get(class.min(CLASSES - 1))) {
            count.add(1, Relaxed);
        }
    }

    /// Writes a line for each opcode that was used: its name, and how many commands took less than how
    /// many microseconds.
    pub(super) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (opcode, counts) in (0u8..).zip(&self.0) {
            let counts = || {
                (0..)
                    .zip(counts)
                    .map(|(class, count)| (class, count.load(Relaxed)))
            };
            if counts().all(|(_, count)| count == 0) {
                continue;
            }
            f.write_str(Opcode::try_from(opcode).map_or("unknown", Opcode::name))?;
            f.write_str(":")?;
            for (class, count) in counts() {
                if count != 0 {
                    write!(f, " <{}us={}", 1u64 << class, count)?;
                }
            }
            f.write_str("\n")?;
        }
        Ok(())
    }
}
