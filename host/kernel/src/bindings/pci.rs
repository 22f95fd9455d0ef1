// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! PCI functions, their drivers and BARs.

use core::{cell::Cell, ptr::null_mut};

use super::{
    attribute_group, device, EBUSY, ENOTTY, IORESOURCE_MEM, PCI_COMMAND, PCI_COMMAND_INTX_DISABLE,
    PCI_COMMAND_MASTER, PCI_COMMAND_MEMORY,
};
use crate::{
    ffi::{c_char, c_int, c_uint, c_ulong, c_void},
    time::JIFFY,
    warn,
};

/// Registers of the configuration that a reset clears.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Configuration {
    pub command: u16,
    /// The addresses of the BARs.
    pub bars: u32,
    /// Control word of MSI-X.
    pub msix: u16,
}

impl Configuration {
    pub const RESET: Self = Self::all(0);
    /// What reads of a function that does not answer return.
    const ABSENT: Self = Self::all(u16::MAX);
    /// BARs have addresses; the function is disabled.
    pub const DETECTED: Self = Self {
        bars: 0xfe00_0000,
        ..Self::RESET
    };
    const MSIX_ENABLE: u16 = 0x8000;

    const fn all(value: u16) -> Self {
        Self {
            command: value,
            bars: value as u32 * 0x1_0001,
            msix: value,
        }
    }

    /// MSI-X is disabled when a function is detected.
    pub fn without_msix(self) -> Self {
        Self { msix: 0, ..self }
    }

    pub fn with_command(self, bits: u32, on: bool) -> Self {
        let (others, bits) = (self.command & !(bits as u16), bits as u16);
        let command = others | if on { bits } else { 0 };
        Self { command, ..self }
    }
}

/// What a driver may access.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    All,
    /// The bus has reported an error.
    Configuration,
    /// The bus resets the function, or it sleeps.
    Nothing,
}

/// Result of a function-level reset.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flr {
    Works,
    Unsupported,
    /// The configuration can't be read, so that there is no reset.
    Unreadable,
    /// The function ignores it, and the bus waits a minute.
    NeverReady,
}

pub struct pci_dev {
    pub dev: device,
    pub number: u16,
    pub device: u16,
    pub error_state: pci_channel_state_t,
    pub registers: Cell<Configuration>,
    /// The saved configuration, and `state_saved`.
    pub saved: Cell<(Configuration, bool)>,
    pub access: Cell<Access>,
    /// Whether the function has lost its power unnoticed.
    pub is_lost: Cell<bool>,
    pub flr: Flr,
    pub enabled: u32,
    pub regions: u32,
    /// The allocated vectors. MSI-X is enabled if there are some.
    pub vectors: Cell<u32>,
    /// Duration of a reset of the function in nanoseconds.
    pub reset_time: u64,
    mask: Box<u64>,
}

pub struct pci_saved_state(Configuration);

thread_local! {
    static FUNCTION: Cell<*const pci_dev> = const { Cell::new(null_mut()) };
}

/// Returns the function of this machine.
pub fn function() -> &'static pci_dev {
    // SAFETY: A test accesses the function of its slot as long as the slot exists.
    unsafe { FUNCTION.get().as_ref() }.expect("a function")
}

impl pci_dev {
    /// Creates a function that is disabled and not bound. It is that of the machine.
    pub fn new(device: u16) -> Box<Self> {
        let mut mask = Box::new(u32::MAX.into());
        let this = Box::new(Self {
            dev: self::device {
                dma_mask: &raw mut *mask,
                // Its content is not read.
                dma_parms: core::ptr::NonNull::dangling().as_ptr(),
                ..self::device::new(c"0000:00:05.0".as_ptr().cast())
            },
            error_state: pci_channel_io_normal,
            reset_time: 100 * JIFFY,
            number: 5 << 3,
            device,
            registers: Cell::new(Configuration::DETECTED),
            // The bus saves it when it has detected a function.
            saved: Cell::new((Configuration::DETECTED, true)),
            access: Cell::new(Access::All),
            is_lost: Cell::new(false),
            flr: Flr::Works,
            enabled: 0,
            regions: 0,
            vectors: Cell::new(0),
            mask,
        });
        FUNCTION.set(&raw const *this);
        this
    }

    fn is_disconnected(&self) -> bool {
        self.error_state == pci_channel_io_perm_failure
    }

    /// Returns whether the function is in its slot, and the bus has not given it up.
    pub fn is_there(&self) -> bool {
        let is_present = sim::device(|device| device.is_present()).unwrap_or(false);
        is_present && !self.is_disconnected()
    }

    fn read(&self) -> Configuration {
        if self.is_there() && self.access.get() != Access::Nothing {
            self.registers.get()
        } else {
            Configuration::ABSENT
        }
    }

    pub fn is_readable(&self) -> bool {
        self.flr != Flr::Unreadable && self.read() != Configuration::ABSENT
    }

    /// Changes the registers. A function that does not answer ignores this.
    pub fn change(&self, change: impl FnOnce(Configuration) -> Configuration) {
        let read = self.read();
        if read != Configuration::ABSENT {
            self.set(change(read));
        }
    }

    /// Sets the registers, as the function itself or the bus does.
    pub fn set(&self, registers: Configuration) {
        self.registers.set(registers);
        let is_master = u32::from(registers.command) & PCI_COMMAND_MASTER != 0;
        sim::memory::set_master(is_master);
        sim::enable_lines(is_master && registers.msix & Configuration::MSIX_ENABLE != 0);
    }

    /// Loses the power: nothing of the configuration is left.
    pub fn lose_power(&self) {
        self.set(Configuration::RESET);
        self.is_lost.set(true);
    }

    /// Warns of a driver's access to the configuration that the bus does not expect.
    fn check(&self) {
        if self.access.get() == Access::Nothing {
            warn("a configuration is accessed while the bus has its function".into());
        }
    }

    /// Warns of a driver's access to a BAR that the bus does not expect.
    pub fn check_memory(&self) {
        if self.access.get() != Access::All {
            warn("a BAR is accessed while the bus has its function".into());
        }
    }

    pub fn decodes(&self) -> bool {
        let registers = self.registers.get();
        let has_memory = u32::from(registers.command) & PCI_COMMAND_MEMORY != 0;
        has_memory && registers.bars == Configuration::DETECTED.bars
    }

    pub fn save(&self) {
        self.saved.set((self.read(), true));
    }

    /// Marks the saved state as out of date, before a driver may save another one.
    pub fn forget_state(&self) {
        self.saved.set((self.saved.get().0, false));
    }

    pub fn save_unless_saved(&self) {
        if !self.saved.get().1 {
            self.save();
        }
    }

    /// Writes the saved configuration, whatever it is, and that of MSI-X as allocated.
    pub fn restore(&self) {
        let (saved, _) = self.saved.get();
        self.change(|_| saved.without_msix());
        if self.vectors.get() != 0 {
            self.enable_msix();
        }
        self.saved.set((saved, false));
        self.is_lost.set(false);
    }

    fn enable_msix(&self) {
        self.change(|registers| Configuration {
            msix: Configuration::MSIX_ENABLE,
            ..registers.with_command(PCI_COMMAND_INTX_DISABLE, true)
        });
    }

    /// Allocates vectors, or frees them.
    pub fn set_vectors(&self, count: u32) {
        // An access to the table of vectors.
        self.check_memory();
        self.check();
        if count != 0 {
            self.enable_msix();
        } else {
            self.change(|registers| {
                let registers = registers.without_msix();
                registers.with_command(PCI_COMMAND_INTX_DISABLE, false)
            });
        }
        if (0..self.vectors.replace(count)).any(sim::has_handler) {
            crate::warn("a vector is freed before its handler".into());
        }
        sim::allocate_lines(count);
    }

    /// Resets the function, as `pcie_reset_flr` does.
    pub fn function_level_reset(&self) -> c_int {
        if matches!(self.flr, Flr::Unsupported | Flr::Unreadable) || !self.is_there() {
            return -ENOTTY;
        }
        // The kernel waits for pending transactions first. A write that has been under way ends here.
        sim::sleep(JIFFY);
        let before = self.access.replace(Access::Nothing);
        sim::sleep(self.reset_time);
        let is_ready = self.flr == Flr::Works;
        if is_ready {
            sim::device(|device| device.function_reset());
            self.set(Configuration::RESET);
        } else {
            sim::sleep(60_000 * JIFFY);
        }
        self.access.set(before);
        if is_ready {
            0
        } else {
            -ENOTTY
        }
    }

    /// Returns whether a driver has released all resources of the function.
    pub fn is_clean(&self) -> bool {
        let _ = &self.mask;
        self.enabled == 0
            && self.regions == 0
            && self.vectors.get() == 0
            && self.dev.actions.borrow().is_empty()
            && self.dev.driver_data.is_null()
    }
}

pub type pci_channel_state_t = c_uint;
pub const pci_channel_io_normal: pci_channel_state_t = 1;
pub const pci_channel_io_frozen: pci_channel_state_t = 2;
pub const pci_channel_io_perm_failure: pci_channel_state_t = 3;

pub type pci_ers_result_t = c_uint;
pub const pci_ers_result_PCI_ERS_RESULT_CAN_RECOVER: pci_ers_result_t = 2;
pub const pci_ers_result_PCI_ERS_RESULT_NEED_RESET: pci_ers_result_t = 3;
pub const pci_ers_result_PCI_ERS_RESULT_DISCONNECT: pci_ers_result_t = 4;
pub const pci_ers_result_PCI_ERS_RESULT_RECOVERED: pci_ers_result_t = 5;

pub struct pci_error_handlers {
    pub error_detected:
        Option<unsafe extern "C" fn(*mut pci_dev, pci_channel_state_t) -> pci_ers_result_t>,
    pub mmio_enabled: Option<unsafe extern "C" fn(*mut pci_dev) -> pci_ers_result_t>,
    pub slot_reset: Option<unsafe extern "C" fn(*mut pci_dev) -> pci_ers_result_t>,
    pub reset_prepare: Option<unsafe extern "C" fn(*mut pci_dev)>,
    pub reset_done: Option<unsafe extern "C" fn(*mut pci_dev)>,
    pub resume: Option<unsafe extern "C" fn(*mut pci_dev)>,
}

pub type Power = Option<unsafe extern "C" fn(*mut device) -> c_int>;

pub struct dev_pm_ops {
    pub prepare: Power,
    pub suspend: Power,
    pub resume: Power,
    pub freeze: Power,
    pub thaw: Power,
    pub poweroff: Power,
    pub restore: Power,
}

pub struct device_driver {
    pub pm: *const dev_pm_ops,
}

pub struct pci_driver {
    pub name: *const c_char,
    pub probe: Option<unsafe extern "C" fn(*mut pci_dev) -> c_int>,
    pub remove: Option<unsafe extern "C" fn(*mut pci_dev)>,
    pub post_unbind: Option<unsafe extern "C" fn(*mut pci_dev)>,
    pub matches: Option<fn(u32) -> bool>,
    pub shutdown: Option<unsafe extern "C" fn(*mut pci_dev)>,
    pub err_handler: *const pci_error_handlers,
    pub dev_groups: *mut *const attribute_group,
    pub driver: device_driver,
}

impl Default for pci_driver {
    fn default() -> Self {
        // SAFETY: All zeroes are a driver without functions: null pointers.
        unsafe { core::mem::zeroed() }
    }
}

thread_local! {
    static DRIVER: Cell<*mut pci_driver> = const { Cell::new(null_mut()) };
}

pub(crate) fn register_driver(driver: *mut pci_driver) {
    DRIVER.set(driver);
}

pub(crate) fn unregister_driver(driver: *mut pci_driver) {
    assert_eq!(DRIVER.replace(null_mut()), driver);
}

/// Returns the registered driver, or null.
pub fn registered_driver() -> *mut pci_driver {
    DRIVER.get()
}

/// Changes bits of the command register.
unsafe fn command(pdev: *mut pci_dev, bits: u32, on: bool) {
    // SAFETY: The caller guarantees that the device is valid.
    let pdev = unsafe { &*pdev };
    pdev.check();
    pdev.change(|registers| registers.with_command(bits, on));
}

pub unsafe fn pci_enable_device_mem(pdev: *mut pci_dev) -> c_int {
    // SAFETY: As above.
    unsafe {
        (*pdev).enabled += 1;
        if (*pdev).enabled == 1 {
            command(pdev, PCI_COMMAND_MEMORY, true);
            // The function has an interrupt pin.
            if (*pdev).vectors.get() == 0 {
                command(pdev, PCI_COMMAND_INTX_DISABLE, false);
            }
        }
    }
    0
}

pub unsafe fn pci_set_master(pdev: *mut pci_dev) {
    // SAFETY: As above.
    unsafe { command(pdev, PCI_COMMAND_MASTER, true) };
}

pub unsafe fn pci_clear_master(pdev: *mut pci_dev) {
    // SAFETY: As above.
    unsafe { command(pdev, PCI_COMMAND_MASTER, false) };
}

pub unsafe fn pci_intx(pdev: *mut pci_dev, enable: c_int) {
    // SAFETY: As above.
    unsafe { command(pdev, PCI_COMMAND_INTX_DISABLE, enable == 0) };
}

pub unsafe fn pci_disable_device(pdev: *mut pci_dev) {
    // SAFETY: As above.
    unsafe {
        (*pdev).enabled -= 1;
        if (*pdev).enabled == 0 {
            pci_clear_master(pdev);
        }
    }
}

pub unsafe fn pci_device_is_present(pdev: *mut pci_dev) -> bool {
    // SAFETY: As above.
    let pdev = unsafe { &*pdev };
    pdev.check();
    pdev.read() != Configuration::ABSENT
}

pub unsafe fn pcie_reset_flr(pdev: *mut pci_dev, probe: bool) -> c_int {
    // SAFETY: As above.
    let pdev = unsafe { &*pdev };
    if probe {
        return if pdev.flr == Flr::Unsupported {
            -ENOTTY
        } else {
            0
        };
    }
    pdev.check();
    pdev.function_level_reset()
}

/// Userspace's accesses to the configuration, which this locks, are not modelled.
pub unsafe fn pci_cfg_access_trylock(_: *mut pci_dev) -> bool {
    true
}

pub unsafe fn pci_cfg_access_unlock(_: *mut pci_dev) {}

pub unsafe fn pci_save_state(pdev: *mut pci_dev) -> c_int {
    // SAFETY: As above.
    let pdev = unsafe { &*pdev };
    pdev.check();
    pdev.save();
    0
}

pub unsafe fn pci_restore_state(pdev: *mut pci_dev) {
    // SAFETY: As above.
    let pdev = unsafe { &*pdev };
    pdev.check();
    pdev.restore();
}

pub unsafe fn pci_store_saved_state(pdev: *mut pci_dev) -> *mut pci_saved_state {
    // SAFETY: As above.
    let (saved, is_saved) = unsafe { (*pdev).saved.get() };
    if !is_saved || !sim::may_allocate() {
        return null_mut();
    }
    Box::into_raw(Box::new(pci_saved_state(saved)))
}

pub unsafe fn pci_load_saved_state(pdev: *mut pci_dev, state: *mut pci_saved_state) -> c_int {
    // SAFETY: As above.
    unsafe { (*pdev).saved.set(((*state).0, true)) };
    0
}

pub unsafe fn pci_read_config_word(pdev: *mut pci_dev, place: c_int, value: *mut u16) -> c_int {
    assert_eq!(place, PCI_COMMAND as c_int);
    // SAFETY: As above.
    unsafe {
        (*pdev).check();
        *value = (*pdev).read().command;
        // `PCIBIOS_DEVICE_NOT_FOUND`.
        c_int::from((*pdev).is_disconnected()) * 0x86
    }
}

/// Frees a saved state, the only type that drivers pass.
pub unsafe fn kfree(memory: *const c_void) {
    // SAFETY: As above.
    drop(unsafe { Box::from_raw(memory.cast_mut().cast::<pci_saved_state>()) });
}

pub unsafe fn pci_select_bars(_: *mut pci_dev, flags: c_ulong) -> c_int {
    assert_eq!(flags, IORESOURCE_MEM as c_ulong);
    let has = |bar: &u32| sim::device(|device| device.bar_size(*bar) != 0).unwrap_or(false);
    (0..6).filter(has).fold(0, |mask, bar| mask | 1 << bar)
}

pub unsafe fn pci_request_selected_regions(
    pdev: *mut pci_dev,
    bars: c_int,
    _: *const c_char,
) -> c_int {
    // SAFETY: As above.
    let regions = unsafe { &mut (*pdev).regions };
    let bars = bars as u32;
    if *regions & bars != 0 {
        return -EBUSY;
    }
    *regions |= bars;
    0
}

pub unsafe fn pci_release_selected_regions(pdev: *mut pci_dev, bars: c_int) {
    // SAFETY: As above.
    let regions = unsafe { &mut (*pdev).regions };
    let bars = bars as u32;
    assert_eq!(*regions & bars, bars);
    *regions &= !bars;
}

/// Returns the physical address of a BAR.
pub fn bar_address(bar: u32) -> u64 {
    (u64::from(bar) + 1) << 40
}

/// Returns the BAR that contains an address, and the offset in it.
pub fn bar_of(address: u64) -> Option<(u32, u64)> {
    let bar = (address >> 40).checked_sub(1).filter(|bar| *bar < 6)?;
    Some((bar as u32, address & ((1 << 40) - 1)))
}

/// Maps a BAR. Its virtual addresses are the physical ones.
pub unsafe fn ioremap(start: u64, _: usize) -> *mut c_void {
    if !sim::may_allocate() {
        return null_mut();
    }
    MAPPED.set(MAPPED.get() + 1);
    start as *mut c_void
}

/// Maps memory of a BAR, which is in this process. Returns null if the BAR is not memory.
pub unsafe fn ioremap_wc(start: u64, length: usize) -> *mut c_void {
    let (bar, offset) = bar_of(start).expect("an address of a BAR");
    let offset = offset as usize;
    if !sim::may_allocate() {
        return null_mut();
    }
    let memory = sim::device(|device| {
        let has_all = (offset + length) as u64 <= device.bar_size(bar);
        device.memory(bar).filter(|_| has_all)
    });
    let Some(memory) = memory.flatten() else {
        return null_mut();
    };
    MAPPED.set(MAPPED.get() + 1);
    memory.wrapping_add(offset).cast()
}

pub unsafe fn iounmap(_: *mut c_void) {
    MAPPED.set(MAPPED.get() - 1);
}

thread_local! {
    static MAPPED: Cell<usize> = const { Cell::new(0) };
}

/// Returns the number of mappings of BARs in the kernel.
pub fn mapped() -> usize {
    MAPPED.get()
}

/// Writes to a register in a BAR.
pub unsafe fn writel(value: u32, address: *mut c_void) {
    let (bar, offset) = bar_of(address as u64).expect("an address of a BAR");
    write_bar(bar, offset, value);
}

/// Writes to a BAR for a driver.
pub(crate) fn write_bar(bar: u32, offset: u64, value: u32) {
    let function = function();
    function.check_memory();
    if sim::device(|device| device.bar_size(bar)).is_some_and(|size| offset + 4 > size) {
        warn(format!("a write beyond a BAR, at {offset:#x}"));
    }
    if function.is_readable() && !function.decodes() && !function.is_lost.get() {
        warn("a BAR is accessed that its function does not decode".into());
    }
    write_bar_of_user(bar, offset, value);
}

/// As [`write_bar`], for a program that has mapped the BAR. It may do so at any time.
pub fn write_bar_of_user(bar: u32, offset: u64, value: u32) {
    if function().decodes() {
        sim::write_device(bar, offset, value);
    }
}
