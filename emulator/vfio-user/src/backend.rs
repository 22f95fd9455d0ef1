// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The device behind a server.

use std::{fs::File, io, ops::Range, os::fd::OwnedFd, sync::Arc};

/// What a device has, as it is told to clients.
#[derive(Clone, Debug, Default)]
pub struct Device {
    /// In the order of their indices; for a PCI device at least nine.
    pub regions: Vec<Region>,
    /// The kinds of interrupts, in the order of their indices.
    pub irqs: Vec<Irq>,
}

/// A region of a device.
#[derive(Clone, Debug, Default)]
pub struct Region {
    /// Bytes; none for a region that the device lacks.
    pub size: u64,
    /// What a client may map, by the file of [`Backend::region_file`].
    pub mappable: Vec<Range<u64>>,
}

/// A kind of interrupts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Irq {
    /// `VFIO_IRQ_INFO_...`
    pub flags: u32,
    /// How many there are.
    pub count: u32,
}

/// A write of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionWrite<'a> {
    /// The region's index.
    pub region: u32,
    /// Where in the region.
    pub offset: u64,
    /// What.
    pub data: &'a [u8],
}

/// Memory that the device may access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaMap {
    /// The device may read it.
    pub readable: bool,
    /// The device may write it.
    pub writable: bool,
    /// Where it begins in its file.
    pub offset: u64,
    /// Its bus address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

/// What happens to interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// They are masked.
    Mask,
    /// They are unmasked.
    Unmask,
    /// They are signalled, or told how to be.
    Trigger,
}

/// What comes with an action on interrupts.
#[derive(Debug)]
pub enum IrqData<'a> {
    /// It is done to all that are named; to all that there are, if none is.
    None,
    /// It is done to those with a byte that is not zero.
    Bools(&'a [u8]),
    /// It signals these eventfds, one for each interrupt; without any, it signals nothing any more.
    Eventfds(Vec<OwnedFd>),
}

/// An action on interrupts that the device has.
#[derive(Debug)]
pub struct IrqSet<'a> {
    /// Their kind.
    pub index: u32,
    /// The first.
    pub start: u32,
    /// How many.
    pub count: u32,
    /// What happens to them.
    pub action: Action,
    /// With what.
    pub data: IrqData<'a>,
}

/// The device, as a server uses it. Whatever it is asked for is within what its [`Device`] has.
///
/// An error fails the request, with the errno of the error; a request that needs no reply fails silently.
pub trait Backend {
    /// Whether the client may be idle. One that may not has [a limit](crate::Limits::start) from when it has connected.
    fn may_idle(&self) -> bool {
        true
    }

    /// The file by which a client maps a region.
    ///
    /// # Errors
    ///
    /// There is none.
    fn region_file(&mut self, region: u32) -> io::Result<Arc<File>>;

    /// Reads a region.
    ///
    /// # Errors
    ///
    /// It can't be read.
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()>;

    /// Writes regions, in this order. At most the last one has a client that waits for it.
    ///
    /// # Errors
    ///
    /// They can't be written.
    fn region_write(&mut self, writes: &[RegionWrite<'_>]) -> io::Result<()>;

    /// Lets the device access memory, if there is a file. If there is none, something is there that it can't access.
    ///
    /// # Errors
    ///
    /// It can't.
    fn dma_map(&mut self, map: DmaMap, file: Option<File>) -> io::Result<()>;

    /// Takes memory from the device, which does not access it any more when this returns.
    ///
    /// # Errors
    ///
    /// The range is none that was mapped.
    fn dma_unmap(&mut self, address: u64, size: u64) -> io::Result<()>;

    /// Takes all memory from the device.
    ///
    /// # Errors
    ///
    /// It can't be taken.
    fn dma_unmap_all(&mut self) -> io::Result<()>;

    /// Acts on interrupts.
    ///
    /// # Errors
    ///
    /// They have no such action.
    fn set_irqs(&mut self, set: IrqSet<'_>) -> io::Result<()>;

    /// Resets the device.
    ///
    /// # Errors
    ///
    /// It can't be reset.
    fn reset(&mut self) -> io::Result<()>;
}
