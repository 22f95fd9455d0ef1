// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The device model of the emulator as the hardware of the simulated machine.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use efa_model::{Config, Device, DmaError, Host, TraceEvent};
use kernel::sim::{self, Hardware, Nanos};

use crate::transport;

/// Corrupts the DMA writes of a device, to emulate one that is faulty or malicious.
pub trait Liar {
    /// May change the data that the device writes to `address`.
    fn change(&mut self, address: u64, data: &mut [u8]);
}

/// The machine as the device sees it.
pub struct Machine {
    is_master: bool,
    liar: Option<Box<dyn Liar>>,
    /// Device memory, which the CPU accesses through a BAR.
    memory: Vec<u64>,
}

impl Host for Machine {
    fn dma_read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        let length = buffer.len();
        let is_mapped = sim::memory::read(address, buffer);
        is_mapped.then_some(()).ok_or(DmaError { address, length })
    }

    fn dma_write(&mut self, address: u64, data: &[u8]) -> Result<(), DmaError> {
        let length = data.len();
        let is_mapped = match &mut self.liar {
            None => sim::memory::write(address, data),
            Some(liar) => {
                let mut data = data.to_vec();
                liar.change(address, &mut data);
                sim::memory::write(address, &data)
            }
        };
        is_mapped.then_some(()).ok_or(DmaError { address, length })
    }

    fn is_bus_master(&self) -> bool {
        self.is_master
    }

    fn read_device_memory(&mut self, offset: u64, buffer: &mut [u8]) {
        for (index, byte) in buffer.iter_mut().enumerate() {
            let at = offset as usize + index;
            let word = self.memory.get(at / 8).copied().unwrap_or(0);
            *byte = word.to_ne_bytes()[at % 8];
        }
    }

    fn interrupt(&mut self, vector: u16) {
        sim::interrupt(vector);
    }

    fn trace(&mut self, event: &TraceEvent) {
        if TRACES.get() {
            sim::log(format_args!("device: {event}\n"));
        }
    }
}

thread_local! {
    static TRACES: Cell<bool> = const { Cell::new(false) };
}

/// Enables or disables trace messages of the device in the kernel log.
pub fn trace_device(on: bool) {
    TRACES.set(on);
}

struct Model {
    device: Device,
    machine: Machine,
    vectors: u32,
    is_present: bool,
    /// Minimum time between two actions of the device, and the earliest time of the next one.
    pace: (Nanos, Nanos),
}

/// A device on the simulated bus, shared with the test.
#[derive(Clone)]
pub struct Shared(Rc<RefCell<Model>>);

impl Shared {
    /// Creates a device.
    pub fn new(config: Config) -> Self {
        let vectors = config.vectors.into();
        let device = Device::new(config);
        let memory = vec![0; device.memory_bar_size() as usize / 8];
        Self(Rc::new(RefCell::new(Model {
            device,
            machine: Machine {
                is_master: false,
                liar: None,
                memory,
            },
            vectors,
            is_present: true,
            pace: (0, 0),
        })))
    }

    /// Calls `f` with the device on behalf of its operator, and then schedules the device.
    pub fn with<R>(&self, f: impl FnOnce(&mut Device, &mut Machine, Duration) -> R) -> R {
        let result = {
            let mut model = self.0.borrow_mut();
            let Model {
                device, machine, ..
            } = &mut *model;
            f(device, machine, Duration::from_nanos(sim::now()))
        };
        sim::kick_device();
        result
    }

    /// Hot-unplugs the device.
    pub fn unplug(&self) {
        self.with(|device, machine, _| device.unplug(machine));
        self.0.borrow_mut().is_present = false;
    }

    /// Sets whether configuration reads of the function succeed, or return all ones.
    pub fn set_present(&self, present: bool) {
        self.0.borrow_mut().is_present = present;
    }

    /// Sets the minimum time between two actions of the device. Without it, a dead device that
    /// continues DMA would write millions of times.
    pub fn set_pace(&self, pace: Nanos) {
        self.0.borrow_mut().pace = (pace, 0);
    }

    /// Sets or removes the liar that corrupts the DMA writes of the device.
    pub fn set_liar(&self, liar: Option<Box<dyn Liar>>) {
        self.0.borrow_mut().machine.liar = liar;
    }
}

impl Hardware for Shared {
    fn write(&mut self, now: Nanos, bar: u32, offset: u64, value: u32) {
        let mut model = self.0.borrow_mut();
        let Model {
            device, machine, ..
        } = &mut *model;
        match bar {
            0 => device.write_register(machine, Duration::from_nanos(now), offset, value),
            bar if bar == u32::from(device.doorbell_bar()) => {
                device.write_doorbell(machine, offset, value)
            }
            _ => {}
        }
    }

    fn run(&mut self, now: Nanos) -> Option<Nanos> {
        let mut model = self.0.borrow_mut();
        let Model {
            device,
            machine,
            pace: (pace, next),
            ..
        } = &mut *model;
        if now < *next {
            return Some(*next);
        }
        *next = now + *pace;
        let mut due = device.run(machine, Duration::from_nanos(now));
        if transport::run(device, machine) {
            due = device.run(machine, Duration::from_nanos(now));
        }
        due.map(|due| u64::try_from(due.as_nanos()).unwrap_or(u64::MAX))
    }

    fn bar_size(&self, bar: u32) -> u64 {
        let device = &self.0.borrow().device;
        match bar {
            0 => 0x2000,
            2 => device.memory_bar_size(),
            bar if bar == u32::from(device.doorbell_bar()) => device.doorbell_bar_size(),
            _ => 0,
        }
    }

    fn memory(&mut self, bar: u32) -> Option<*mut u8> {
        let mut model = self.0.borrow_mut();
        (bar == 2).then(|| model.machine.memory.as_mut_ptr().cast())
    }

    fn vectors(&self) -> u32 {
        self.0.borrow().vectors
    }

    fn set_master(&mut self, on: bool) {
        self.0.borrow_mut().machine.is_master = on;
    }

    fn function_reset(&mut self) {
        let mut model = self.0.borrow_mut();
        let Model {
            device, machine, ..
        } = &mut *model;
        machine.trace(&TraceEvent::FunctionReset);
        device.reset(machine);
    }

    fn is_present(&self) -> bool {
        self.0.borrow().is_present
    }

    fn knows(&self, address: u64, length: usize) -> bool {
        let model = self.0.borrow();
        model.is_present && model.device.knows(&(address..address + length as u64))
    }
}
