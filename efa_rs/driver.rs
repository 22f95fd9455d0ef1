// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The PCI driver, which connects the device's control path with verbs.

use core::pin::Pin;

use kernel::{
    device::{
        Bound,
        Core,
        Device, //
    },
    driver,
    pci,
    prelude::*,
    sync::{
        Arc,
        SetOnce, //
    },
    InPlaceModule, //
};

use crate::{
    com::{
        Controller,
        Recovery,
        Service,
        Session, //
    },
    hw, rdma,
    sys::{
        self,
        attach::Binding,
        log,
        mmio::Region,
        pci_config::Enabled,
        pci_driver::Wakers, //
    },
    verbs::{
        Bars,
        Efa,
        Errors,
        Verbs, //
    },
};

/// The name that resources are reserved under.
const NAME: &CStr = c"efa";

/// The module: the driver's registration with the PCI bus.
#[pin_data]
pub(crate) struct EfaModule {
    #[pin]
    _driver: driver::Registration<sys::pci_driver::Adapter<EfaDriver>>,
    /// Dropped last, as the directories of devices are in it.
    _debugfs: sys::debugfs::Root,
}

impl InPlaceModule for EfaModule {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            _debugfs: sys::debugfs::Root::new(NAME),
            _driver <- driver::Registration::new(NAME, module),
        })
    }
}

kernel::pci_device_table!(
    PCI_TABLE,
    (),
    [
        (
            pci::DeviceId::from_id(pci::Vendor::AMAZON, hw::pci::DEVICES[0] as u32),
            ()
        ),
        (
            pci::DeviceId::from_id(pci::Vendor::AMAZON, hw::pci::DEVICES[1] as u32),
            ()
        ),
        (
            pci::DeviceId::from_id(pci::Vendor::AMAZON, hw::pci::DEVICES[2] as u32),
            ()
        ),
        (
            pci::DeviceId::from_id(pci::Vendor::AMAZON, hw::pci::DEVICES[3] as u32),
            ()
        ),
        (
            pci::DeviceId::from_id(pci::Vendor::AMAZON, hw::pci::DEVICES[4] as u32),
            ()
        ),
    ]
);

/// The driver of EFA devices.
struct EfaDriver;

/// A device that is bound to the driver.
#[pin_data]
struct Driver<'bound> {
    /// Dropped first, before the function is disabled.
    #[pin]
    recovery: Recovery<'bound, Interface<'bound>>,
    _enabled: Enabled<'bound>,
}

/// The interface of a device to programs: its verbs.
struct Interface<'bound> {
    binding: Binding<'bound>,
    home: Arc<rdma::Home>,
    memory: Arc<Region<'bound>>,
    /// Number and region of the BAR with the doorbells, if it is not `memory`.
    doorbells: SetOnce<(u8, Arc<Region<'bound>>)>,
    errors: Arc<Errors>,
}

/// The file that names the mechanism to register memory of other devices.
///
/// Amazon's driver names the provider of its functions for GPU memory, if any.
struct PeerMemory;

impl sys::sysfs::File for PeerMemory {
    const NAME: &'static CStr = c"p2p";
    const TEXT: &'static CStr = c"DMABUF";
}

impl sys::pci_driver::Driver for EfaDriver {
    type Data<'bound> = Driver<'bound>;
    type File = PeerMemory;
    const ID_TABLE: pci::IdTable<()> = &PCI_TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        binding: Binding<'bound>,
        wakers: Wakers,
    ) -> impl PinInit<Driver<'bound>, Error> + 'bound {
        Driver::bind(pdev, binding, wakers)
    }

    fn start(this: Pin<&Driver<'_>>) -> Result {
        this.recovery.start()
    }

    fn work(this: Pin<&Driver<'_>>) {
        this.recovery.attend();
    }

    fn monitor(this: Pin<&Driver<'_>>) {
        this.recovery.monitor();
    }

    fn unbind(this: Pin<&Driver<'_>>, end_work: &dyn Fn()) {
        this.recovery.unbind(end_work);
    }

    fn shutdown(this: Pin<&Driver<'_>>) {
        this.recovery.shutdown();
    }

    fn quiesce(this: Pin<&Driver<'_>>) {
        this.recovery.quiesce();
    }

    fn restart(this: Pin<&Driver<'_>>) {
        this.recovery.restart();
    }

    fn lost(this: Pin<&Driver<'_>>) {
        this.recovery.give_up();
    }
}

impl<'bound> Driver<'bound> {
    /// Takes over and resets the device.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if a BAR is missing, or the device is not ready.
    /// - [`EFAULT`] if the registers can't be mapped.
    /// - [`ETIMEDOUT`] if the device does not answer.
    /// - [`ENOMEM`] if there is no memory.
    fn bind<'core>(
        pdev: &'bound pci::Device<Core<'core>>,
        binding: Binding<'bound>,
        wakers: Wakers,
    ) -> impl PinInit<Self, Error> + use<'bound, 'core> {
        pin_init::pin_init_scope(move || {
            let enabled = Enabled::new(pdev).inspect_err(|error| {
                log::failed(binding.dev(), "The device could not be enabled", error);
            })?;
            let memory = request(pdev, hw::pci::MEMORY_BAR)?;
            let controller = Controller::bind(pdev, &enabled, binding, NAME, wakers)
                .map_err(|error| if error == ETIME { ETIMEDOUT } else { error })?;
            let interface = Interface {
                binding,
                home: rdma::Home::new(c"efa_%d")?,
                memory,
                doorbells: SetOnce::new(),
                errors: Arc::new(Errors::default(), GFP_KERNEL)?,
            };
            let automatic = crate::module_parameters::recovery.value() != 0;

            Ok(try_pin_init!(Self {
                recovery <- Recovery::new(controller, interface, automatic)?,
                _enabled: enabled,
            }? Error))
        })
    }
}

impl<'bound> Service<'bound> for Interface<'bound> {
    type Running = rdma::Registration<'bound, 'bound, Verbs>;

    fn start(&self, session: &Arc<Session<'bound>>) -> Result<Self::Running> {
        let bars = Bars::new(self.doorbells(session)?, self.memory.clone());
        let efa = Efa::new(session.clone(), bars, self.errors.clone())?;
        let info = efa.node_info()?;

        #[cfg(in_tree)]
        let name = c"efa_%d";
        #[cfg(not(in_tree))]
        let name = self.home.clone();
        rdma::Registration::new(self.binding, name, info, Ok(efa)).inspect_err(|error| {
            let dev = self.binding.dev();
            log::failed(dev, "The RDMA device could not be registered", error);
        })
    }
}

impl<'bound> Interface<'bound> {
    /// Returns the BAR with the doorbells. If it is not that of the send queues, the first session
    /// reserves it for the binding.
    fn doorbells(&self, session: &Session<'bound>) -> Result<Arc<Region<'bound>>> {
        match (
            u8::try_from(session.attributes().device.db_bar),
            self.doorbells.as_ref(),
        ) {
            (Ok(hw::pci::MEMORY_BAR), _) => Ok(self.memory.clone()),
            (Ok(bar), Some((reserved, region))) if bar == *reserved => Ok(region.clone()),
            (Ok(bar), None) if bar != hw::pci::REGISTER_BAR => {
                let region = request(session.device().pdev, bar)?;
                self.doorbells.populate((bar, region.clone()));
                Ok(region)
            }
            // Processes map the doorbells, and must not access registers.
            _ => {
                let dev = self.binding.dev();
                log::failed(
                    dev,
                    "The device reports no BAR that can be used for its doorbells",
                    &ENODEV,
                );
                Err(ENODEV)
            }
        }
    }
}

/// Reserves a BAR.
fn request<'bound>(pdev: &'bound pci::Device<Bound>, bar: u8) -> Result<Arc<Region<'bound>>> {
    Region::request(pdev, bar, NAME).inspect_err(|error| {
        let dev: &Device<Bound> = pdev.as_ref();
        dev_err!(dev, "BAR {} is not available ({:?})\n", bar, error);
    })
}
