// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Allocations. Each may fail, and is counted until it is freed.

use core::{
    marker::Unsize,
    ops::{CoerceUnsized, Deref, DerefMut},
    pin::Pin,
};

/// Error of a failed allocation.
#[derive(Clone, Copy, Debug)]
pub struct AllocError;

/// Allocation flags.
pub mod flags {
    /// Flags of an allocation.
    #[derive(Clone, Copy)]
    pub struct Flags(u32);

    impl core::ops::BitOr for Flags {
        type Output = Self;

        fn bitor(self, other: Self) -> Self {
            Self(self.0 | other.0)
        }
    }

    /// The caller may sleep, which the shim checks.
    pub const GFP_KERNEL: Flags = Flags(1);
    /// The caller may not sleep.
    pub const GFP_ATOMIC: Flags = Flags(2);
    /// A failure prints no message. The shim never prints one.
    pub const __GFP_NOWARN: Flags = Flags(4);
    /// The memory is zeroed.
    pub const __GFP_ZERO: Flags = Flags(8);

    impl Flags {
        /// Returns an error if the allocation must fail.
        pub(crate) fn allow(self) -> Result<(), super::AllocError> {
            if self.0 & GFP_KERNEL.0 != 0 {
                sim::might_sleep("an allocation");
            }
            if sim::may_allocate() {
                Ok(())
            } else {
                Err(super::AllocError)
            }
        }
    }
}

use flags::Flags;

/// Counts the bytes of an allocation as long as it exists.
pub(crate) struct Counted(usize);

impl Counted {
    pub(crate) fn new(bytes: usize) -> Self {
        sim::count_allocated(bytes);
        Self(bytes)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        sim::count_freed(self.0);
    }
}

/// An owned allocation.
pub struct KBox<T: ?Sized>(Box<T>, Counted);

impl<T: ?Sized + Unsize<U>, U: ?Sized> CoerceUnsized<KBox<U>> for KBox<T> {}

impl<T> KBox<T> {
    /// Allocates memory, and moves a value there.
    ///
    /// # Errors
    ///
    /// An [`AllocError`] if there is no memory.
    pub fn new(value: T, flags: Flags) -> Result<Self, AllocError> {
        flags.allow()?;
        Ok(Self(Box::new(value), Counted::new(size_of::<T>())))
    }

    /// Allocates memory. The shim always zeroes it.
    pub fn new_uninit(flags: Flags) -> Result<KBox<core::mem::MaybeUninit<T>>, AllocError> {
        flags.allow()?;
        let mut memory = Box::<T>::new_uninit();
        // SAFETY: The box has room for one `T`.
        unsafe { memory.as_mut_ptr().write_bytes(0, 1) };
        Ok(KBox(memory, Counted::new(size_of::<T>())))
    }

    /// Converts the box to a raw pointer.
    pub fn into_raw(this: Self) -> *mut T {
        core::mem::forget(this.1);
        Box::into_raw(this.0)
    }

    /// Converts a raw pointer back to a box.
    ///
    /// # Safety
    ///
    /// [`KBox::into_raw`] must have returned the pointer, which is used once.
    pub unsafe fn from_raw(pointer: *mut T) -> Self {
        // SAFETY: The caller guarantees that this was a box.
        Self(unsafe { Box::from_raw(pointer) }, Counted(size_of::<T>()))
    }

    pub(crate) fn from_box(value: Box<T>) -> Self {
        Self(value, Counted::new(size_of::<T>()))
    }

    pub(crate) fn into_pointer(this: Pin<Self>) -> *mut T {
        // SAFETY: The value is not moved.
        Self::into_raw(unsafe { Pin::into_inner_unchecked(this) })
    }

    pub(crate) unsafe fn from_pointer(pointer: *mut T) -> Pin<Self> {
        // SAFETY: The caller guarantees that this was a pinned box.
        unsafe { Pin::new_unchecked(Self::from_raw(pointer)) }
    }
}

impl<T: ?Sized> Deref for KBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized> DerefMut for KBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// A vector.
pub struct KVec<T>(Vec<T>);

/// A vector of any size.
pub type KVVec<T> = KVec<T>;

/// Error of [`KVec::push_within_capacity`], with the value that does not fit.
pub struct PushError<T>(pub T);

/// Error of [`KVec::insert_within_capacity`], with the value that was not inserted.
pub struct InsertError<T>(pub T);

/// Error of [`KVec::remove`]: there is no value at the index.
#[derive(Debug)]
pub struct RemoveError;

impl<T> KVec<T> {
    /// Returns an empty vector.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Returns an empty vector with room for `capacity` values.
    ///
    /// # Errors
    ///
    /// An [`AllocError`] if there is no memory.
    pub fn with_capacity(capacity: usize, flags: Flags) -> Result<Self, AllocError> {
        let mut this = Self::new();
        this.reserve(capacity, flags)?;
        Ok(this)
    }

    /// Returns the number of values for which memory is allocated.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Returns the number of bytes for which memory is allocated.
    fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<T>()
    }

    /// Makes room for `additional` more values.
    ///
    /// # Errors
    ///
    /// An [`AllocError`] if there is no memory.
    pub fn reserve(&mut self, additional: usize, flags: Flags) -> Result<(), AllocError> {
        if self.0.capacity() - self.0.len() < additional {
            flags.allow()?;
            sim::count_freed(self.bytes());
            self.0.reserve(additional);
            sim::count_allocated(self.bytes());
        }
        Ok(())
    }

    /// Adds a value at the end.
    ///
    /// # Errors
    ///
    /// An [`AllocError`] if there is no memory.
    pub fn push(&mut self, value: T, flags: Flags) -> Result<(), AllocError> {
        self.reserve(1, flags)?;
        self.0.push(value);
        Ok(())
    }

    /// Returns a vector of `count` copies of a value.
    ///
    /// # Errors
    ///
    /// An [`AllocError`] if there is no memory.
    pub fn from_elem(value: T, count: usize, flags: Flags) -> Result<Self, AllocError>
    where
        T: Clone,
    {
        let mut this = Self::with_capacity(count, flags)?;
        this.0.resize(count, value);
        Ok(this)
    }

    /// Removes the last value.
    pub fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }

    /// Removes the value at an index. Later values move down.
    ///
    /// # Errors
    ///
    /// A [`RemoveError`] if there is none.
    pub fn remove(&mut self, index: usize) -> Result<T, RemoveError> {
        if index >= self.0.len() {
            return Err(RemoveError);
        }
        Ok(self.0.remove(index))
    }

    /// Adds a value at the end without an allocation.
    ///
    /// # Errors
    ///
    /// A [`PushError`] if there is no room.
    pub fn push_within_capacity(&mut self, value: T) -> Result<(), PushError<T>> {
        if self.0.len() == self.0.capacity() {
            return Err(PushError(value));
        }
        self.0.push(value);
        Ok(())
    }

    /// Inserts a value at an index without an allocation. Later values move up.
    ///
    /// # Errors
    ///
    /// An [`InsertError`] if there is no room, or if the index exceeds the length.
    pub fn insert_within_capacity(&mut self, index: usize, value: T) -> Result<(), InsertError<T>> {
        if index > self.0.len() || self.0.len() == self.0.capacity() {
            return Err(InsertError(value));
        }
        self.0.insert(index, value);
        Ok(())
    }

    /// Returns all values.
    pub fn as_slice(&self) -> &[T] {
        &self.0
    }
}

impl<T> Drop for KVec<T> {
    fn drop(&mut self) {
        sim::count_freed(self.bytes());
    }
}

impl<T> Default for KVec<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Deref for KVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for KVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<'a, T> IntoIterator for &'a KVec<T> {
    type Item = &'a T;
    type IntoIter = core::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T> IntoIterator for KVec<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(mut self) -> Self::IntoIter {
        sim::count_freed(self.bytes());
        std::mem::take(&mut self.0).into_iter()
    }
}
