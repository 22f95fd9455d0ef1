// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The PCI driver: from a function on the bus to a registered RDMA device, and back.

use core::pin::Pin;

use kernel::{
    device::{
        Bound,
        Core,
        Device, //
    },
    driver,
    module::this_module,
    pci,
    prelude::*,
    sync::Arc,
    InPlaceModule, //
};

use crate::{
    com::{
        self,
        Controller,
        EventQueue,
        Registers, //
    },
    hw::{
        self,
        regs::{
            Caps,
            ControllerVersion,
            Register,
            ResetReason,
            Version, //
        },
    },
    rdma,
    sys::{
        self,
        errno::{
            eopnotsupp,
            etime, //
        },
        irq,
        mmio::Region, //
    },
    verbs::Efa, //
};

/// The name that resources are reserved under.
const NAME: &CStr = c"efa";

/// The oldest version of the admin interface that this driver speaks.
const MIN_VERSION: Version = Version { major: 0, minor: 1 };

/// The oldest controller that this driver works with: major, minor and subminor version.
const MIN_CONTROLLER_VERSION: (u8, u8, u8) = (0, 0, 1);

/// The module: the driver's registration with the PCI bus.
#[pin_data]
pub(crate) struct EfaModule {
    #[pin]
    _driver: driver::Registration<sys::pci::Adapter<EfaDriver>>,
}

impl InPlaceModule for EfaModule {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            if !rdma::layouts_agree() {
                pr_err!("The module was built with bindings that differ from the kernel's headers; rebuild it\n");
                return Err(ENOEXEC);
            }
            Ok(try_pin_init!(Self {
                _driver <- driver::Registration::new(NAME, module),
            }))
        })
    }
}

kernel::pci_device_table!(
    PCI_TABLE,
    (),
    [
        (device_id(hw::pci::DEVICES[0]), ()),
        (device_id(hw::pci::DEVICES[1]), ()),
        (device_id(hw::pci::DEVICES[2]), ()),
        (device_id(hw::pci::DEVICES[3]), ()),
    ]
);

/// Returns what matches Amazon's device `id`.
const fn device_id(id: u16) -> pci::DeviceId {
    pci::DeviceId::from_id(pci::Vendor::AMAZON, id as u32)
}

/// The driver of EFA devices.
struct EfaDriver;

/// Everything that `probe` acquires, in the order in which it is given back.
struct Driver {
    /// Verbs are called until this is dropped.
    _registration: rdma::Registration<Efa>,
    /// Completion queues refer to these.
    event_queues: KVec<EventQueue<rdma::CqEvents>>,
    /// Queue pairs have their doorbells here, unless it is one of the regions below.
    _doorbell_region: Option<Region>,
    /// Queue pairs have their send queues here.
    _memory_region: Region,
    /// The device is reset when this is dropped.
    controller: Controller,
    _enabled: sys::pci::Enabled,
    /// A device that could not be reset may write a late answer here until it is disabled.
    _registers: Arc<Registers>,
}

impl sys::pci::Driver for EfaDriver {
    type Data<'bound> = Driver;
    const ID_TABLE: pci::IdTable<()> = &PCI_TABLE;

    fn probe<'bound>(pdev: &'bound pci::Device<Core<'_>>) -> impl PinInit<Driver, Error> + 'bound {
        Driver::start(pdev)
    }

    fn shutdown<'bound>(_dev: &'bound pci::Device<Core<'_>>, this: Pin<&'bound Driver>) {
        for queue in &this.event_queues {
            queue.silence();
        }
        this.controller.shutdown();
    }
}

impl Driver {
    /// Brings the device up.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if a BAR is missing, or the device is not ready.
    /// - [`EFAULT`] if the registers can't be mapped.
    /// - [`EPROBE_DEFER`] if the device does not answer, as one that has just appeared may not yet.
    /// - `EOPNOTSUPP` if the device is too old, or lacks what the driver needs.
    /// - [`EINVAL`] if an attribute of the device makes no sense.
    /// - [`ENOSPC`] if there is no interrupt vector.
    /// - `ETIME` if an admin command is not answered.
    /// - [`ENOMEM`] if there is no memory.
    fn start(pdev: &pci::Device<Core<'_>>) -> Result<Self> {
        let dev: &Device<Bound> = pdev.as_ref();

        let enabled = sys::pci::Enabled::new(pdev).inspect_err(|error| {
            sys::log::failed(dev, "The device could not be enabled", error);
        })?;
        let register_region = request(pdev, hw::pci::REGISTER_BAR)?;
        let memory_region = request(pdev, hw::pci::MEMORY_BAR)?;

        let mapping = register_region.map().map_err(|error| {
            sys::log::failed(dev, "The registers could not be mapped", &error);
            EFAULT
        })?;
        let registers = Registers::new(dev, mapping)?;
        // From here on dropped before the registers, see `Driver`.
        let enabled = enabled;

        let version = prepare(pdev, &registers).map_err(|error| {
            if error == etime() {
                EPROBE_DEFER
            } else {
                error
            }
        })?;

        // One for management, and one for each CPU.
        let wanted = sys::system::online_cpus().saturating_add(1);
        let vectors = irq::Vectors::alloc(pdev, wanted).map_err(|error| {
            sys::log::failed(dev, "MSI-X could not be enabled", &error);
            ENOSPC
        })?;

        let mut controller = Controller::start(pdev, registers.clone(), vectors, version)?;
        let attributes = controller.negotiate()?;
        let doorbell_region = request_doorbells(pdev, attributes.device.db_bar)?;
        let event_queues = controller.create_event_queues(pdev, &attributes)?;
        controller.send_host_info(pdev, &attributes);

        let mut event_targets = KVec::with_capacity(event_queues.len(), GFP_KERNEL)?;
        for queue in &event_queues {
            event_targets.push(queue.target(), GFP_KERNEL)?;
        }

        let efa = Efa::new(
            pdev,
            controller.admin().clone(),
            attributes,
            event_targets,
            controller.keep_alives(),
        )?;
        let registration = efa
            .node_info()
            .and_then(|info| {
                let module = this_module::<EfaModule>();
                rdma::Registration::new(dev, module, c"efa_%d", info, efa)
            })
            .inspect_err(|error| {
                sys::log::failed(dev, "The RDMA device could not be registered", error);
            })?;

        controller.started();
        dev_info!(
            dev,
            "{}: admin API {}.{}, {} event queues\n",
            registration.name(),
            version.major,
            version.minor,
            event_queues.len()
        );

        Ok(Self {
            _registration: registration,
            event_queues,
            _doorbell_region: doorbell_region,
            _memory_region: memory_region,
            controller,
            _enabled: enabled,
            _registers: registers,
        })
    }
}

/// Reserves a BAR.
fn request(pdev: &pci::Device<Bound>, bar: u8) -> Result<Region> {
    Region::request(pdev, bar.into(), NAME)
        .inspect_err(|error| dev_err!(pdev, "BAR {} is not available ({:?})\n", bar, error))
}

/// Reserves the BAR with the doorbells, if it is none of those that are reserved anyway.
fn request_doorbells(pdev: &pci::Device<Bound>, bar: u16) -> Result<Option<Region>> {
    match u8::try_from(bar) {
        Ok(hw::pci::REGISTER_BAR | hw::pci::MEMORY_BAR) => Ok(None),
        Ok(bar) => request(pdev, bar).map(Some),
        Err(_) => {
            let dev: &Device<Bound> = pdev.as_ref();
            sys::log::failed(dev, "The device has its doorbells in no BAR", &ENODEV);
            Err(ENODEV)
        }
    }
}

/// Resets the device, checks its versions and sets the width of its DMA addresses.
///
/// Returns the version of the admin interface.
fn prepare(pdev: &pci::Device<Core<'_>>, registers: &Registers) -> Result<Version> {
    let dev: &Device<Bound> = pdev.as_ref();

    com::reset(dev, registers, ResetReason::Normal)?;

    let version = Version::from_raw(registers.read(Register::Version)?);
    if (version.major, version.minor) < (MIN_VERSION.major, MIN_VERSION.minor) {
        dev_err!(
            dev,
            "The device speaks admin API {}.{}, which is too old\n",
            version.major,
            version.minor
        );
        return Err(eopnotsupp());
    }

    let controller = ControllerVersion::from_raw(registers.read(Register::ControllerVersion)?);
    if (controller.major, controller.minor, controller.subminor) < MIN_CONTROLLER_VERSION {
        dev_err!(
            dev,
            "The device's controller has version {}.{}.{}, which is too old\n",
            controller.major,
            controller.minor,
            controller.subminor
        );
        return Err(eopnotsupp());
    }

    let width = Caps::from_raw(registers.read(Register::Caps)?).dma_addr_width;
    sys::dma::set_address_width(pdev, width).inspect_err(|error| {
        dev_err!(
            dev,
            "DMA addresses of {} bits can't be used ({:?})\n",
            width,
            error
        );
    })?;

    Ok(version)
}
