// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Files in debugfs, which tests read and write by their path.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    ops::Deref,
    rc::Rc,
};

use pin_init::PinInit;

use crate::{
    error::{code::EINVAL, Error, Result},
    fmt,
    str::CStr,
    uaccess::{UserPtr, UserSlice, UserSliceReader},
};

/// A directory. Its drop does not remove it, as tests read files only.
#[derive(Clone)]
pub struct Dir(String);

impl Dir {
    /// Creates a directory in the root.
    pub fn new(name: &CStr) -> Self {
        Self(name.to_string_lossy().into_owned())
    }

    fn path(&self, name: &CStr) -> String {
        format!("{}/{}", self.0, name.to_string_lossy())
    }

    /// Creates a directory in this one.
    pub fn subdir(&self, name: &CStr) -> Self {
        Self(self.path(name))
    }

    /// Creates a file that is read by a function.
    pub fn read_callback_file<T, E>(
        &self,
        name: &CStr,
        data: impl PinInit<T, E>,
        show: &'static impl Fn(&T, &mut fmt::Formatter<'_>) -> fmt::Result,
    ) -> impl PinInit<File<T>, Error>
    where
        Error: From<E>,
    {
        let write = None::<fn(&T, &mut UserSliceReader) -> Result>;
        self.file(name, data, show, write)
    }

    /// Creates a file that is read and written by two functions.
    pub fn read_write_callback_file<T, E>(
        &self,
        name: &CStr,
        data: impl PinInit<T, E>,
        show: &'static impl Fn(&T, &mut fmt::Formatter<'_>) -> fmt::Result,
        write: &'static impl Fn(&T, &mut UserSliceReader) -> Result,
    ) -> impl PinInit<File<T>, Error>
    where
        Error: From<E>,
    {
        self.file(name, data, show, Some(write))
    }

    fn file<T, E>(
        &self,
        name: &CStr,
        data: impl PinInit<T, E>,
        show: impl Fn(&T, &mut fmt::Formatter<'_>) -> fmt::Result,
        write: Option<impl Fn(&T, &mut UserSliceReader) -> Result>,
    ) -> impl PinInit<File<T>, Error>
    where
        Error: From<E>,
    {
        let name = self.path(name);
        pin_init::try_pin_init!(&this in File {
            data <- data,
            node: {
                let file = this.as_ptr() as usize;
                // SAFETY: The file waits for the last call before it is freed.
                let data = move || unsafe { &(*(file as *const File<T>)).data };
                let show: Box<Show<'_>> = Box::new(move || Shown(data(), &show).to_string());
                let write: Box<Write<'_>> = Box::new(move |bytes| {
                    let pointer = UserPtr::from_ptr(bytes.as_ptr().cast_mut().cast());
                    let mut reader = UserSlice::new(pointer, bytes.len()).reader();
                    write.as_ref().map_or(Err(EINVAL), |write| write(data(), &mut reader))
                });
                // SAFETY: As above: neither is called after the end of the file.
                let (show, write) = unsafe {
                    (
                        core::mem::transmute::<Box<Show<'_>>, Box<Show<'static>>>(show),
                        core::mem::transmute::<Box<Write<'_>>, Box<Write<'static>>>(write),
                    )
                };
                let users = Cell::new(0);
                let node = Rc::new(Node { show, write, users });
                FILES.with(|files| files.borrow_mut().insert(name.clone(), node.clone()));
                node
            },
            name,
        }? Error)
    }
}

type Show<'a> = dyn Fn() -> String + 'a;
type Write<'a> = dyn Fn(&[u8]) -> Result + 'a;

/// The callbacks of a file for its readers and writers.
struct Node {
    show: Box<Show<'static>>,
    write: Box<Write<'static>>,
    users: Cell<u32>,
}

thread_local! {
    static FILES: RefCell<BTreeMap<String, Rc<Node>>> = const { RefCell::new(BTreeMap::new()) };
}

fn with_node<R>(path: &str, f: impl FnOnce(&Node) -> R) -> Option<R> {
    let node = FILES.with(|files| files.borrow().get(path).cloned())?;
    node.users.set(node.users.get() + 1);
    let result = f(&node);
    node.users.set(node.users.get() - 1);
    sim::signal(Rc::as_ptr(&node) as usize);
    Some(result)
}

/// Reads a file, if it exists.
pub fn read(path: &str) -> Option<String> {
    with_node(path, |node| (node.show)())
}

/// Writes a file, if it exists.
pub fn write(path: &str, bytes: &[u8]) -> Option<Result> {
    with_node(path, |node| (node.write)(bytes))
}

struct Shown<'a, T, F>(&'a T, &'a F);

impl<T, F: Fn(&T, &mut fmt::Formatter<'_>) -> fmt::Result> std::fmt::Display for Shown<'_, T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.1(self.0, f)
    }
}

/// A file and its data. Its drop removes the file, after the last call of its functions has returned.
pub struct File<T> {
    data: T,
    node: Rc<Node>,
    name: String,
}

// SAFETY: All tasks are in one thread.
unsafe impl<T: Send> Send for File<T> {}
// SAFETY: As above.
unsafe impl<T: Sync> Sync for File<T> {}

impl<T> Deref for File<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.data
    }
}

impl<T> Drop for File<T> {
    fn drop(&mut self) {
        FILES.with(|files| files.borrow_mut().remove(&self.name));
        while self.node.users.get() != 0 {
            sim::wait_for(Rc::as_ptr(&self.node) as usize);
        }
    }
}
