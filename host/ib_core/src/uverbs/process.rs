// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Programs that have a device open.

use core::{
    cell::{Cell, RefCell},
    ptr::null_mut,
};
use std::rc::Rc;

use kernel::{
    bindings::vm_area_struct,
    error::{code::*, to_result, Result},
    ffi::c_void,
    page::PAGE_SHIFT,
    sim::{self, Rw},
};

use super::{Call, File, Kind, Mapping, Uobject, Vma, DEVICES};
use crate::{
    ffi::{self, ib_device, ib_ucontext},
    registry::state,
    verbs,
};

/// A program that has a device open. Its drop ends the program, which closes the file.
///
/// `input` and `output` of the calls are the driver's own structures. Calls fail with `EIO` after
/// the removal of the device, with [`EINVAL`] for invalid ids, and with the errors of the driver.
pub struct Process(Rc<File>);

impl Process {
    /// Opens the device that was added last.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if there is none, [`EIO`] if it is being removed.
    pub fn open() -> Result<Self> {
        let device = DEVICES
            .with(|devices| devices.borrow().last().cloned())
            .ok_or(ENODEV)?;
        if device.raw.get().is_null() {
            return Err(EIO);
        }
        let file = Rc::new(File {
            device: device.clone(),
            hw_destroy: Rw::new(),
            context: Cell::new(null_mut()),
            objects: RefCell::default(),
            ended: RefCell::default(),
            next: Cell::new(1),
            vmas: RefCell::default(),
        });
        device.files.borrow_mut().push(file.clone());
        Ok(Self(file))
    }

    /// Returns whether its device is registered.
    pub fn has_device(&self) -> bool {
        !self.0.device.raw.get().is_null()
    }

    /// Calls `f` unless the device was removed. The removal waits for the call.
    fn call<R>(&self, f: impl FnOnce(*mut ib_device) -> Result<R>) -> Result<R> {
        let device = &self.0.device;
        device.calls.set(device.calls.get() + 1);
        sim::point();
        let raw = device.raw.get();
        let result = if raw.is_null() {
            Err(EIO)
        } else {
            sim::timed("a call of a program", || f(raw))
        };
        device.calls.set(device.calls.get() - 1);
        sim::signal(Rc::as_ptr(device) as usize);
        sim::point();
        result
    }

    /// As `call`, and excludes the destruction of all objects of the file.
    fn locked<R>(&self, f: impl FnOnce(*mut ib_device) -> Result<R>) -> Result<R> {
        self.call(|device| {
            if !self.0.hw_destroy.try_read() {
                return Err(EIO);
            }
            let result = f(device);
            self.0.hw_destroy.end_read();
            result
        })
    }

    /// As `locked`, and passes the context.
    pub(super) fn with_context<R>(
        &self,
        f: impl FnOnce(*mut ib_device, *mut ib_ucontext) -> Result<R>,
    ) -> Result<R> {
        self.locked(|device| match self.0.context.get() {
            context if context.is_null() => Err(EINVAL),
            context => f(device, context),
        })
    }

    fn object(&self, id: u32, kind: Kind) -> Result<Rc<Uobject>> {
        let objects = self.0.objects.borrow();
        let found = objects
            .iter()
            .find(|object| object.id == id && object.kind == kind);
        found
            .filter(|object| !object.is_locked.get())
            .cloned()
            .ok_or(EINVAL)
    }

    pub(super) fn raw<T>(&self, id: u32, kind: Kind) -> Result<*mut T> {
        Ok(self.object(id, kind)?.raw.get().cast())
    }

    fn next_number(&self) -> u32 {
        let number = self.0.next.get();
        self.0.next.set(number + 1);
        number
    }

    pub(super) fn new_object(&self, kind: Kind) -> Rc<Uobject> {
        Rc::new(Uobject {
            id: self.next_number(),
            kind,
            raw: Cell::new(null_mut()),
            is_locked: Cell::new(false),
            events: Cell::new(0),
        })
    }

    pub(super) fn add<T>(&self, object: Rc<Uobject>, raw: *mut T) -> u32 {
        object.raw.set(raw.cast());
        let id = object.id;
        self.0.objects.borrow_mut().push(object);
        id
    }

    /// Creates the context, which all calls but [`Process::query_device`] need.
    ///
    /// # Errors
    ///
    /// See [`Process`]; [`EINVAL`] if there is a context.
    pub fn alloc_context(&self, input: &[u8], output: &mut [u8]) -> Result {
        // SAFETY: The device stays registered while the call runs, and the context has the size that the driver asks for.
        self.locked(|device| unsafe {
            if !self.0.context.get().is_null() {
                return Err(EINVAL);
            }
            let ops = &(*device).ops;
            let context: *mut ib_ucontext = verbs::allocate(ops.size_ib_ucontext)?;
            (*context).device = device;
            let mut call = Call::new(context, input, output);
            let result = to_result(ops.alloc_ucontext.expect("a function")(
                context,
                call.udata(),
            ));
            if let Err(error) = result {
                verbs::free(context, ops.size_ib_ucontext);
                return Err(error);
            }
            state(device).count("ctx", 1);
            self.0.context.set(context);
            Ok(())
        })
    }

    /// Queries the attributes of the device.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn query_device(&self, input: &[u8], output: &mut [u8]) -> Result {
        self.call(|device| {
            let mut attr: ffi::ib_device_attr = super::zeroed();
            let mut call = Call::new(self.0.context.get(), input, output);
            // SAFETY: The device stays registered while the call runs, and so does its table.
            let query = unsafe { (*device).ops.query_device.expect("a function") };
            // SAFETY: The device stays registered while the call runs, and the attributes and the data are those of this call.
            to_result(unsafe { query(device, &raw mut attr, call.udata()) })
        })
    }

    /// Destroys an object.
    ///
    /// # Errors
    ///
    /// See [`Process`], but [`ENOENT`] for an invalid id, and [`EBUSY`] if the object is in use.
    /// After the removal of the device, none for objects that the program had.
    pub fn destroy(&self, id: u32) -> Result {
        let result = self.with_context(|_, _| {
            let find = |object: &&Rc<Uobject>| object.id == id;
            let object = self
                .0
                .objects
                .borrow()
                .iter()
                .find(find)
                .cloned()
                .ok_or(ENOENT)?;
            if object.is_locked.replace(true) {
                return Err(EBUSY);
            }
            // SAFETY: The object is in the list, and so exists; as it is locked, no call starts that uses it.
            let result = unsafe { object.destroy() };
            object.is_locked.set(false);
            result?;
            self.0.objects.borrow_mut().retain(|other| other.id != id);
            Ok(())
        });
        result.or_else(|error| {
            if !self.0.device.raw.get().is_null() {
                return Err(error);
            }
            let mut ended = self.0.ended.borrow_mut();
            let place = ended.iter().position(|other| *other == id);
            ended.swap_remove(place.ok_or(ENOENT)?);
            Ok(())
        })
    }

    /// Returns the driver's details for `rdma resource show`, of which `room` values fit.
    ///
    /// # Errors
    ///
    /// See [`Process`]; [`EMSGSIZE`] if there are more values.
    pub fn details(&self, id: u32, kind: Kind, room: usize) -> Result<Vec<(String, u64)>> {
        self.with_context(|device, _| {
            let raw = self.raw::<c_void>(id, kind)?;
            verbs::details(device, raw as usize, room)
        })
    }

    /// Maps `length` bytes of the file at an offset that the driver has returned.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn map(&self, offset: u64, length: u64) -> Result<Mapping> {
        self.with_context(|device, context| {
            let length = length as usize;
            let mut vma = vm_area_struct {
                vm_start: 0x7000_0000,
                vm_end: 0x7000_0000 + length,
                vm_pgoff: offset as usize >> PAGE_SHIFT,
                ..vm_area_struct::default()
            };
            // SAFETY: The context is valid.
            to_result(unsafe { (*device).ops.mmap.expect("a function")(context, &raw mut vma) })?;
            let (start, entry) = vma.mapped.expect("a mapping");
            let number = self.next_number().into();
            self.0.vmas.borrow_mut().push(Vma {
                number,
                start,
                length,
                entry: entry.map(|entry| entry as *mut _),
            });
            Ok(Mapping {
                file: self.0.clone(),
                number,
            })
        })
    }

    /// Returns the number of completion events that a queue has delivered.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if there is no such queue, [`EIO`] if the device was removed and has destroyed it.
    pub fn events(&self, id: u32) -> Result<u32> {
        match self.object(id, Kind::Cq) {
            Err(_) if !self.has_device() => Err(EIO),
            found => Ok(found?.events.get()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let file = &self.0;
        file.end(false);
        file.device
            .files
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, file));
    }
}
