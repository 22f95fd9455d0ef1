// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices and open files of `ib_uverbs`.
//!
//! When a device is removed, its programs keep their files. As in the kernel's `uverbs_destroy_ufile_hw`, the
//! removal waits for calls that run, destroys all objects, and then zaps the mappings of the device. Later
//! calls fail with `EIO`. A program that exits does the same for its file alone, but its mappings end first.

use core::{
    cell::{Cell, RefCell},
    ptr::null_mut,
};
use std::rc::Rc;

use kernel::{
    error::{code::EBUSY, Result},
    ffi::c_void,
    sim::{self, Rw},
    warn,
};

use crate::{
    client::{register_client, Client},
    ffi::{ib_device, ib_pd, ib_ucontext},
    mmap,
    registry::state,
    verbs,
};

mod call;
mod mapping;
mod objects;
mod process;

pub use self::{
    call::context_of,
    mapping::Mapping,
    objects::{Keys, QpAttr},
    process::Process,
};
pub(crate) use self::{
    call::{buffer, Call, CQ_BUFFER},
    mapping::Vma,
};

/// Returns zeroes, which are valid for the structures of C: numbers and pointers that may be null.
pub fn zeroed<T>() -> T {
    // SAFETY: All callers ask for structures of numbers and of pointers that may be null, of which zeroes are a valid value.
    unsafe { core::mem::zeroed() }
}

/// Kind of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A protection domain.
    Pd,
    /// A completion queue.
    Cq,
    /// A queue pair.
    Qp,
    /// An address handle.
    Ah,
    /// A memory region.
    Mr,
    /// A completion counter.
    Counter,
}

/// An object of a process.
pub(crate) struct Uobject {
    pub(crate) id: u32,
    pub(crate) kind: Kind,
    pub(crate) raw: Cell<*mut c_void>,
    pub(crate) is_locked: Cell<bool>,
    /// The number of events that a queue has delivered.
    pub(crate) events: Cell<u32>,
}

impl Uobject {
    /// Destroys the object in the device.
    ///
    /// # Safety
    ///
    /// The object must exist, and must not be used any more.
    pub(crate) unsafe fn destroy(&self) -> Result {
        let raw = self.raw.get();
        // The driver does not read the input of these calls.
        // SAFETY: The caller guarantees that the object exists and is not in use; its kind is that of its creation.
        unsafe {
            let mut call = Call::new(null_mut(), &[], &mut []);
            let udata = call.udata();
            match self.kind {
                Kind::Pd if (*raw.cast::<ib_pd>()).usecnt.counter != 0 => Err(EBUSY),
                Kind::Pd => verbs::dealloc_pd(raw.cast(), udata),
                Kind::Cq => verbs::destroy_cq(raw.cast(), udata),
                Kind::Qp => verbs::destroy_qp(raw.cast(), udata),
                Kind::Ah => verbs::destroy_ah(raw.cast()),
                Kind::Mr => verbs::dereg_mr(raw.cast(), udata),
                Kind::Counter => verbs::destroy_counter(raw.cast()),
            }?;
        }
        self.raw.set(null_mut());
        Ok(())
    }
}

/// An open device file.
pub(crate) struct File {
    pub(crate) device: Rc<Device>,
    pub(crate) hw_destroy: Rw,
    pub(crate) context: Cell<*mut ib_ucontext>,
    pub(crate) objects: RefCell<Vec<Rc<Uobject>>>,
    /// Ids of objects that ended with the device. The program may still destroy these.
    pub(crate) ended: RefCell<Vec<u32>>,
    pub(crate) next: Cell<u32>,
    pub(crate) vmas: RefCell<Vec<Vma>>,
}

/// A device file.
pub(crate) struct Device {
    pub(crate) raw: Cell<*mut ib_device>,
    /// Number of calls that are running.
    pub(crate) calls: Cell<u32>,
    pub(crate) files: RefCell<Vec<Rc<File>>>,
}

thread_local! {
    pub(crate) static DEVICES: RefCell<Vec<Rc<Device>>> = const { RefCell::new(Vec::new()) };
}

/// Discards the state of the previous machine, and registers the client.
pub(crate) fn start() {
    DEVICES.with(|devices| std::mem::forget(std::mem::take(&mut *devices.borrow_mut())));
    register_client(Rc::new(Programs));
}

struct Programs;

impl Client for Programs {
    fn takes_all(&self) -> bool {
        true
    }

    fn add(&self, device: *mut ib_device) -> Result<*mut c_void> {
        let file = Device {
            raw: Cell::new(device),
            calls: Cell::new(0),
            files: RefCell::default(),
        };
        DEVICES.with(|devices| devices.borrow_mut().push(Rc::new(file)));
        Ok(null_mut())
    }

    fn remove(&self, device: *mut ib_device, _: *mut c_void) {
        let find = |devices: &RefCell<Vec<Rc<Device>>>| {
            let mut devices = devices.borrow_mut();
            let place = devices.iter().position(|one| one.raw.get() == device)?;
            Some(devices.remove(place))
        };
        let Some(file) = DEVICES.with(find) else {
            return;
        };
        // As `uverbs_disassociate_api_pre`: later calls fail, and running calls are waited for.
        file.raw.set(null_mut());
        sim::point();
        while file.calls.get() != 0 {
            sim::wait_for(Rc::as_ptr(&file) as usize);
        }
        loop {
            let Some(one) = file.files.borrow().first().cloned() else {
                break;
            };
            file.files
                .borrow_mut()
                .retain(|other| !Rc::ptr_eq(other, &one));
            one.end(true);
        }
    }
}

impl File {
    /// As `uverbs_destroy_ufile_hw`.
    pub(crate) fn end(&self, is_removed: bool) {
        self.hw_destroy.write();
        let context = self.context.get();
        if !context.is_null() {
            // SAFETY: The context exists until it is freed here, and its device until it has left `ib_uverbs`.
            unsafe {
                let device = (*context).device;
                let ops = &(*device).ops;
                if !is_removed {
                    self.unmap(true);
                }
                while !self.objects.borrow().is_empty() && self.clean_up() {}
                if !self.objects.borrow().is_empty() {
                    warn("uverbs_destroy_ufile_hw: objects can't be destroyed".into());
                    // They leak, as a queue may still have events.
                    core::mem::forget(self.objects.take());
                }
                if is_removed {
                    self.unmap(false);
                    ops.disassociate_ucontext.expect("a function")(context);
                }
                ops.dealloc_ucontext.expect("a function")(context);
                let left = mmap::end(context);
                if left != 0 {
                    warn(format!("{left} entries of mappings left"));
                }
                state(device).count("ctx", -1);
                verbs::free(context, ops.size_ib_ucontext);
            }
            self.context.set(null_mut());
        }
        self.hw_destroy.end_write();
    }

    /// Destroys objects, the newest first. Returns whether any destruction has succeeded.
    fn clean_up(&self) -> bool {
        let all: Vec<_> = self.objects.borrow().iter().rev().cloned().collect();
        let mut any = false;
        for object in all {
            // SAFETY: The file is locked for writing, so that no other call runs; the object is in its list, and so exists.
            if unsafe { object.destroy() }.is_ok() {
                self.objects
                    .borrow_mut()
                    .retain(|other| !Rc::ptr_eq(other, &object));
                self.ended.borrow_mut().push(object.id);
                any = true;
            }
        }
        any
    }

    fn unmap(&self, all: bool) {
        let vmas = self.vmas.take();
        let (gone, kept): (Vec<_>, Vec<_>) =
            vmas.into_iter().partition(|vma| all || vma.entry.is_some());
        *self.vmas.borrow_mut() = kept;
        gone.into_iter().for_each(Vma::end);
    }
}
