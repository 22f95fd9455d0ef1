// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Modules, and their parameters.

use std::{cell::RefCell, collections::BTreeMap, pin::Pin};

use pin_init::PinInit;

use crate::{
    alloc::{flags::GFP_KERNEL, KBox},
    bindings,
    error::{Error, Result},
    init::InPlaceInit,
};

/// The C representation of a module, which is empty here.
pub struct ThisModule;

impl ThisModule {
    /// Returns a null pointer: modules of the shim are never unloaded by C.
    pub const fn as_ptr(&self) -> *mut bindings::module {
        core::ptr::null_mut()
    }
}

/// Metadata of a module, which the macro `module!` implements.
pub trait ModuleMetadata {
    /// The module.
    const THIS_MODULE: ThisModule;
}

/// The module that is being initialized.
pub static THIS_MODULE: ThisModule = ThisModule;

/// A module that is moved after its initialization.
pub trait Module: Sized + Sync + Send {
    /// Initializes the module.
    ///
    /// # Errors
    ///
    /// Errors of the module, which is not loaded then.
    fn init(module: &'static ThisModule) -> Result<Self>;
}

/// A module that is initialized in place.
pub trait InPlaceModule: Sync + Send {
    /// Initializes the module.
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error>
    where
        Self: Sized;
}

impl<T: Module> InPlaceModule for T {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || Ok(<T as Module>::init(module)))
    }
}

/// Any type.
trait Anything {}

impl<T> Anything for T {}

/// A module that is loaded. Its drop unloads it.
///
/// Unlike the kernel's, a module keeps its statics when it is loaded again, and all threads share them.
#[must_use = "the drop unloads the module"]
pub struct Loaded(#[allow(dead_code, reason = "kept for its drop")] KBox<dyn Anything>);

impl Loaded {
    /// Keeps the module for ever.
    pub fn leak(self) {
        core::mem::forget(self);
    }
}

/// Loads a module. The macro `module!` defines a function `load` that calls this.
///
/// # Errors
///
/// Errors of the module's initialization.
pub fn load<M: InPlaceModule + 'static>() -> Result<Loaded> {
    let module: Pin<KBox<M>> = KBox::pin_init(M::init(&THIS_MODULE), GFP_KERNEL)?;
    // SAFETY: The module is not moved out of its box.
    let module: KBox<M> = unsafe { Pin::into_inner_unchecked(module) };
    Ok(Loaded(module))
}

thread_local! {
    static PARAMETERS: RefCell<BTreeMap<&'static str, i64>> = const { RefCell::new(BTreeMap::new()) };
}

/// Sets a module parameter, as `/sys/module/*/parameters` does. `None` restores the default.
pub fn set_parameter(name: &'static str, value: Option<i64>) {
    PARAMETERS.with(|all| match value {
        Some(value) => all.borrow_mut().insert(name, value),
        None => all.borrow_mut().remove(name),
    });
}

/// Returns the value of a parameter, if it was set.
pub fn parameter(name: &str) -> Option<i64> {
    PARAMETERS.with(|all| all.borrow().get(name).copied())
}
