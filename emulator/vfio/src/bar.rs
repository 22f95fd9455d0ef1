// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The function's base address registers (BARs) and their memory regions.

use efa_hw::pci;

/// A BAR, by the memory that it gives access to.
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

    /// Returns the index of the base address register. As it is 64 bits wide, it takes the next index, too.
    pub(crate) const fn index(self) -> u8 {
        match self {
            Self::Registers => pci::REGISTER_BAR,
            Self::Llq => pci::MEMORY_BAR,
            Self::Doorbells => 4,
        }
    }
}

/// Size of the register BAR and least size of the doorbell BAR, in bytes. Either has space for MSI-X.
const MIN_SIZE: u64 = 16 << 10;

/// The BARs of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bars {
    /// Size of the send queues in bytes.
    pub(crate) llq: u64,
    /// Size of the doorbells in bytes.
    pub(crate) doorbells: u64,
    /// A BAR that the function lacks, for tests.
    pub(crate) missing: Option<Bar>,
}

impl Bars {
    /// Returns the BARs that the function has.
    pub(crate) fn iter(self) -> impl Iterator<Item = Bar> {
        Bar::ALL.into_iter().filter(move |bar| Some(*bar) != self.missing)
    }

    /// Returns the BAR with this index, if the function has it.
    pub(crate) fn at(self, index: u32) -> Option<Bar> {
        self.iter().find(|bar| u32::from(bar.index()) == index)
    }

    /// Returns the size of a BAR in bytes, a power of two.
    pub(crate) fn size(self, bar: Bar) -> u64 {
        match bar {
            Bar::Registers => MIN_SIZE,
            Bar::Llq => self.llq.next_power_of_two(),
            Bar::Doorbells => self.doorbells.next_power_of_two().max(MIN_SIZE),
        }
    }

    /// Returns the BAR with the MSI-X table. A function without the register BAR still has interrupts, as the VMM needs them.
    pub(crate) fn msix(self) -> Bar {
        match self.missing {
            Some(Bar::Registers) => Bar::Doorbells,
            _ => Bar::Registers,
        }
    }

    /// Returns the offset of the MSI-X table in its BAR. It has a page of its own at the end, because the VMM emulates it.
    pub(crate) fn msix_table(self) -> u64 {
        self.size(self.msix()) - 0x2000
    }

    /// Returns the offset of the MSI-X pending bits, in the page after the table.
    pub(crate) fn msix_pending(self) -> u64 {
        self.size(self.msix()) - 0x1000
    }
}
