// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The function's memory regions.

use efa_hw::pci;

/// What a base address register gives access to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bar {
    /// The management registers.
    Registers,
    /// Memory of the device that holds the send queues (low latency queues).
    Llq,
    /// The doorbells of send, receive and completion queues.
    Doorbells,
}

impl Bar {
    const ALL: [Self; 3] = [Self::Registers, Self::Llq, Self::Doorbells];

    /// The number of its base address register. It is 64 bits wide and so takes the next one too.
    pub(crate) const fn index(self) -> u8 {
        match self {
            Self::Registers => pci::REGISTER_BAR,
            Self::Llq => pci::MEMORY_BAR,
            Self::Doorbells => 4,
        }
    }
}

/// Bytes of the registers, and the least of the doorbells: either has room for MSI-X.
const MIN_SIZE: u64 = 16 << 10;

/// The BARs of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bars {
    /// Bytes of the send queues.
    pub(crate) llq: u64,
    /// Bytes of the doorbells.
    pub(crate) doorbells: u64,
    /// One that the function lacks.
    pub(crate) missing: Option<Bar>,
}

impl Bars {
    /// Those that the function has.
    pub(crate) fn iter(self) -> impl Iterator<Item = Bar> {
        Bar::ALL
            .into_iter()
            .filter(move |bar| Some(*bar) != self.missing)
    }

    /// The one with this base address register.
    pub(crate) fn at(self, index: u32) -> Option<Bar> {
        self.iter().find(|bar| u32::from(bar.index()) == index)
    }

    /// Bytes of a BAR, a power of two.
    pub(crate) fn size(self, bar: Bar) -> u64 {
        match bar {
            Bar::Registers => MIN_SIZE,
            Bar::Llq => self.llq.next_power_of_two(),
            Bar::Doorbells => self.doorbells.next_power_of_two().max(MIN_SIZE),
        }
    }

    /// The BAR with the MSI-X table. A function that lacks the registers still has interrupts, as the VMM needs them.
    pub(crate) fn msix(self) -> Bar {
        match self.missing {
            Some(Bar::Registers) => Bar::Doorbells,
            _ => Bar::Registers,
        }
    }

    /// Where the MSI-X table is in its BAR: in a page of its own at the end, because the VMM keeps it.
    pub(crate) fn msix_table(self) -> u64 {
        self.size(self.msix()) - 0x2000
    }

    /// Where the MSI-X pending bits are, in the page after the table.
    pub(crate) fn msix_pending(self) -> u64 {
        self.size(self.msix()) - 0x1000
    }
}
