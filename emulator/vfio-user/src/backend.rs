// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The device behind a server.

use std::{
    fs::File,
    io,
    ops::Range,
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
};

/// The regions and interrupts of a device, as reported to clients.
#[derive(Clone, Debug, Default)]
pub struct Device {
    /// The regions by index. A PCI device has at least nine.
    pub regions: Vec<Region>,
    /// The kinds of interrupts by index.
    pub irqs: Vec<Irq>,
}

/// A region of a device.
#[derive(Clone, Debug, Default)]
pub struct Region {
    /// Size in bytes. Zero for a region that the device lacks.
    pub size: u64,
    /// Ranges that a client may map, through the file of [`Backend::region_file`].
    pub mappable: Vec<Range<u64>>,
}

/// A kind of interrupts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Irq {
    /// `VFIO_IRQ_INFO_...`
    pub flags: u32,
    /// Number of interrupts of this kind.
    pub count: u32,
}

/// A write to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionWrite<'a> {
    /// The region's index.
    pub region: u32,
    /// Offset in the region, in bytes.
    pub offset: u64,
    /// The bytes to write.
    pub data: &'a [u8],
}

/// A range of bus addresses that a client maps for DMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaMap {
    /// Whether the device may read it.
    pub readable: bool,
    /// Whether the device may write it.
    pub writable: bool,
    /// Offset of the range in its file, in bytes.
    pub offset: u64,
    /// First bus address (IOVA).
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
}

/// An action on interrupts (`VFIO_IRQ_SET_ACTION_...`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Masks the interrupts.
    Mask,
    /// Unmasks the interrupts.
    Unmask,
    /// Signals the interrupts, or sets their eventfds.
    Trigger,
}

/// The data of an action on interrupts (`VFIO_IRQ_SET_DATA_...`).
#[derive(Debug)]
pub enum IrqData<'a> {
    /// The action applies to the whole range. An empty range stands for all interrupts of the kind.
    None,
    /// One byte per interrupt. The action applies where it is not zero.
    Bools(&'a [u8]),
    /// Eventfds to signal, one for each interrupt of the range. If empty, the range no longer signals any.
    Eventfds(Vec<OwnedFd>),
}

/// An action on a range of interrupts, all of which the device has.
#[derive(Debug)]
pub struct IrqSet<'a> {
    /// Index of their kind.
    pub index: u32,
    /// First interrupt of the range.
    pub start: u32,
    /// Number of interrupts in the range.
    pub count: u32,
    /// The action to carry out.
    pub action: Action,
    /// The data of the action.
    pub data: IrqData<'a>,
}

/// The device behind a server. Regions, offsets and interrupts in calls are within those of its [`Device`].
///
/// An error fails the request with the errno of the error. A request that needs no reply fails silently.
pub trait Backend {
    /// Whether the client may be idle. If not, [`Limits::start`](crate::Limits::start) limits the time since it connected.
    fn may_idle(&self) -> bool {
        true
    }

    /// Returns a descriptor that is readable while the device needs the thread that serves the client, for what may block.
    fn waker(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Does what the device needs. Called by the thread that serves the client, when [`Self::waker`] is readable.
    fn woken(&mut self) {}

    /// Returns the file through which a client maps a region.
    ///
    /// # Errors
    ///
    /// The region has no such file.
    fn region_file(&mut self, region: u32) -> io::Result<Arc<File>>;

    /// Reads a region.
    ///
    /// # Errors
    ///
    /// The region can't be read.
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()>;

    /// Carries out writes to regions, in this order. The client waits at most for those of the last message.
    ///
    /// # Errors
    ///
    /// A region can't be written.
    fn region_write(&mut self, writes: &[RegionWrite<'_>]) -> io::Result<()>;

    /// Maps memory for the device. Without a file, the range is occupied, but the device can't access it.
    ///
    /// # Errors
    ///
    /// The range can't be mapped.
    fn dma_map(&mut self, map: DmaMap, file: Option<File>) -> io::Result<()>;

    /// Unmaps memory. The device no longer accesses it when this returns.
    ///
    /// # Errors
    ///
    /// The range is invalid, such as a part of a mapping.
    fn dma_unmap(&mut self, address: u64, size: u64) -> io::Result<()>;

    /// Unmaps all memory of the device.
    ///
    /// # Errors
    ///
    /// The memory can't be unmapped.
    fn dma_unmap_all(&mut self) -> io::Result<()>;

    /// Carries out an action on interrupts.
    ///
    /// # Errors
    ///
    /// The interrupts do not support the action.
    fn set_irqs(&mut self, set: IrqSet<'_>) -> io::Result<()>;

    /// Resets the device.
    ///
    /// # Errors
    ///
    /// The device can't be reset.
    fn reset(&mut self) -> io::Result<()>;
}
