// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! PCI functions, their drivers and BARs.

use core::{cell::Cell, ptr::null_mut};

use super::{
    attribute_group, device, EBUSY, IORESOURCE_MEM, PCI_COMMAND, PCI_COMMAND_INTX_DISABLE,
    PCI_COMMAND_MASTER,
};
use crate::{
    ffi::{c_char, c_int, c_uint, c_ulong, c_void},
    time::JIFFY,
};

pub struct pci_dev {
    pub dev: device,
    pub number: u16,
    pub device: u16,
    pub command: u16,
    pub error_state: pci_channel_state_t,
    pub saved: Option<u16>,
    pub enabled: u32,
    pub regions: u32,
    pub vectors: u32,
    /// Duration of a reset of the function in nanoseconds.
    pub reset_time: u64,
    mask: Box<u64>,
}

pub struct pci_saved_state(u16);

impl pci_dev {
    /// Creates a function that is disabled and not bound.
    pub fn new(device: u16) -> Box<Self> {
        let mut mask = Box::new(u32::MAX.into());
        Box::new(Self {
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
            command: 0,
            saved: None,
            enabled: 0,
            regions: 0,
            vectors: 0,
            mask,
        })
    }

    /// Returns whether a driver has released all resources of the function.
    pub fn is_clean(&self) -> bool {
        let _ = &self.mask;
        self.enabled == 0
            && self.regions == 0
            && self.vectors == 0
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

type Power = Option<unsafe extern "C" fn(*mut device) -> c_int>;

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

/// Writes the command register, unless the function has failed permanently.
unsafe fn write_command(pdev: *mut pci_dev, command: u16) {
    // SAFETY: The caller guarantees that the device is valid.
    let pdev = unsafe { &mut *pdev };
    if pdev.error_state != pci_channel_io_perm_failure {
        pdev.command = command;
        sim::memory::set_master(command & PCI_COMMAND_MASTER as u16 != 0);
    }
}

pub unsafe fn pci_set_master(pdev: *mut pci_dev) {
    // SAFETY: The caller guarantees that the device is valid.
    unsafe { write_command(pdev, (*pdev).command | PCI_COMMAND_MASTER as u16) };
}

pub unsafe fn pci_clear_master(pdev: *mut pci_dev) {
    // SAFETY: As above.
    unsafe { write_command(pdev, (*pdev).command & !(PCI_COMMAND_MASTER as u16)) };
}

pub unsafe fn pci_intx(pdev: *mut pci_dev, enable: c_int) {
    // SAFETY: As above.
    unsafe {
        let others = (*pdev).command & !(PCI_COMMAND_INTX_DISABLE as u16);
        let disable = if enable == 0 {
            PCI_COMMAND_INTX_DISABLE
        } else {
            0
        };
        write_command(pdev, others | disable as u16);
    }
}

pub unsafe fn pci_disable_device(pdev: *mut pci_dev) {
    // SAFETY: As above.
    unsafe {
        (*pdev).enabled -= 1;
        pci_clear_master(pdev);
    }
}

pub unsafe fn pci_device_is_present(_: *mut pci_dev) -> bool {
    sim::device(|device| device.is_present()).unwrap_or(false)
}

pub unsafe fn pcie_reset_flr(pdev: *mut pci_dev, probe: bool) -> c_int {
    if !probe {
        // SAFETY: As above.
        sim::sleep(unsafe { (*pdev).reset_time });
        sim::device(|device| device.function_reset());
    }
    0
}

pub unsafe fn pci_save_state(pdev: *mut pci_dev) -> c_int {
    // SAFETY: As above.
    unsafe { (*pdev).saved = Some((*pdev).command) };
    0
}

pub unsafe fn pci_restore_state(pdev: *mut pci_dev) {
    // SAFETY: As above.
    unsafe {
        if let Some(command) = (*pdev).saved {
            write_command(pdev, command);
        }
    }
}

pub unsafe fn pci_store_saved_state(pdev: *mut pci_dev) -> *mut pci_saved_state {
    if !sim::may_allocate() {
        return null_mut();
    }
    // SAFETY: As above.
    let command = unsafe { (*pdev).saved.unwrap_or(0) };
    Box::into_raw(Box::new(pci_saved_state(command)))
}

pub unsafe fn pci_load_saved_state(pdev: *mut pci_dev, state: *mut pci_saved_state) -> c_int {
    // SAFETY: As above.
    unsafe { (*pdev).saved = Some((*state).0) };
    0
}

pub unsafe fn pci_read_config_word(pdev: *mut pci_dev, place: c_int, value: *mut u16) -> c_int {
    assert_eq!(place, PCI_COMMAND as c_int);
    // SAFETY: As above.
    unsafe {
        *value = if pci_device_is_present(pdev) {
            (*pdev).command
        } else {
            u16::MAX
        };
    }
    0
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

pub unsafe fn writel(value: u32, address: *mut c_void) {
    let (bar, offset) = bar_of(address as u64).expect("an address of a BAR");
    sim::write_device(bar, offset, value);
}
