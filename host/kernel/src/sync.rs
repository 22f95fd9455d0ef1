// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Shared ownership, locks, condition variables and barriers.

use core::{
    cell::UnsafeCell,
    marker::{PhantomData, PhantomPinned, Unsize},
    ops::{CoerceUnsized, Deref, DerefMut},
};

use pin_init::PinInit;
use sim::RawLock;

use crate::{
    alloc::{flags::Flags, AllocError, Counted},
    bindings::lock_class_key,
    error::{Error, Result},
    time::{Jiffies, JIFFY},
};

pub use crate::global_lock;

// Shared ownership.

struct Shared<T: ?Sized> {
    _counted: Counted,
    value: T,
}

/// A counted reference.
pub struct Arc<T: ?Sized>(std::sync::Arc<Shared<T>>);

impl<T: ?Sized + Unsize<U>, U: ?Sized> CoerceUnsized<Arc<U>> for Arc<T> where
    std::sync::Arc<Shared<T>>: CoerceUnsized<std::sync::Arc<Shared<U>>>
{
}

impl<T> Arc<T> {
    /// Allocates memory, and moves a value there.
    ///
    /// # Errors
    ///
    /// An [`AllocError`] if there is no memory.
    pub fn new(value: T, flags: Flags) -> Result<Self, AllocError> {
        flags.allow()?;
        let _counted = Counted::new(size_of::<T>());
        Ok(Self(std::sync::Arc::new(Shared { _counted, value })))
    }

    /// Allocates memory, and initializes it.
    ///
    /// # Errors
    ///
    /// Errors of the initializer, and `ENOMEM`.
    pub fn pin_init<E>(init: impl PinInit<T, E>, flags: Flags) -> Result<Self>
    where
        Error: From<E>,
    {
        flags.allow()?;
        let mut place = std::sync::Arc::<Shared<T>>::new_uninit();
        let slot = std::sync::Arc::get_mut(&mut place)
            .expect("it is new")
            .as_mut_ptr();
        // SAFETY: The allocation has room for the value, which is initialized after that.
        unsafe {
            init.__pinned_init(&raw mut (*slot).value)?;
            (&raw mut (*slot)._counted).write(Counted::new(size_of::<T>()));
            Ok(Self(place.assume_init()))
        }
    }
}

impl<T> Arc<T> {
    /// Converts the reference to a pointer to the value.
    pub fn into_raw(self) -> *const T {
        // SAFETY: The pointer is one to a `Shared`.
        unsafe { &raw const (*std::sync::Arc::into_raw(self.0)).value }
    }

    /// Converts a pointer back to a reference.
    ///
    /// # Safety
    ///
    /// [`Arc::into_raw`] must have returned the pointer, which is used once.
    pub unsafe fn from_raw(pointer: *const T) -> Self {
        let offset = core::mem::offset_of!(Shared<T>, value);
        // SAFETY: The caller guarantees that the value is in such a structure.
        Self(unsafe { std::sync::Arc::from_raw(pointer.byte_sub(offset).cast()) })
    }
}

impl<T: ?Sized> Arc<T> {
    /// Returns whether both refer to the same value.
    pub fn ptr_eq(this: &Self, other: &Self) -> bool {
        std::sync::Arc::ptr_eq(&this.0, &other.0)
    }

    /// Returns a pointer to the value.
    pub fn as_ptr(this: &Self) -> *const T {
        &raw const this.0.value
    }
}

impl<T: ?Sized> Clone for Arc<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: ?Sized> Deref for Arc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

// Locks.

/// A class of locks.
pub struct LockClassKey(UnsafeCell<lock_class_key>);

// SAFETY: It has no content.
unsafe impl Sync for LockClassKey {}

impl LockClassKey {
    /// Returns a class.
    pub const fn new() -> Self {
        Self(UnsafeCell::new(lock_class_key))
    }

    /// Returns a pointer for C.
    pub const fn as_ptr(&self) -> *mut lock_class_key {
        self.0.get()
    }
}

impl Default for LockClassKey {
    fn default() -> Self {
        Self::new()
    }
}

/// A kind of lock.
pub trait Backend {
    /// Whether its holder may sleep.
    const SLEEPS: bool;
}

/// A mutex.
pub struct Sleeping;
/// A spinlock.
pub struct Spinning;

impl Backend for Sleeping {
    const SLEEPS: bool = true;
}

impl Backend for Spinning {
    const SLEEPS: bool = false;
}

/// A value and the lock that protects it.
pub struct Lock<T: ?Sized, B: Backend> {
    raw: RawLock,
    backend: PhantomData<B>,
    value: UnsafeCell<T>,
}

/// A lock whose holder may sleep.
pub type Mutex<T> = Lock<T, Sleeping>;
/// A lock that interrupt handlers take as well.
pub type SpinLockIrq<T> = Lock<T, Spinning>;
/// A mutex that is held.
pub type MutexGuard<'a, T> = Guard<'a, T, Sleeping>;

// SAFETY: All tasks are in one thread.
unsafe impl<T: ?Sized + Send, B: Backend> Send for Lock<T, B> {}
// SAFETY: As above.
unsafe impl<T: ?Sized + Send, B: Backend> Sync for Lock<T, B> {}

impl<T, B: Backend> Lock<T, B> {
    /// Returns an initializer.
    #[track_caller]
    pub fn new(value: T) -> impl PinInit<Self> {
        Ok::<_, core::convert::Infallible>(Self {
            raw: RawLock::new(),
            backend: PhantomData,
            value: UnsafeCell::new(value),
        })
    }
}

impl<T: ?Sized, B: Backend> Lock<T, B> {
    /// Takes the lock.
    pub fn lock(&self) -> Guard<'_, T, B> {
        self.raw.lock(B::SLEEPS);
        Guard {
            lock: self,
            not_send: PhantomData,
        }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_, T, B>> {
        self.raw.try_lock(B::SLEEPS).then(|| Guard {
            lock: self,
            not_send: PhantomData,
        })
    }
}

/// A lock that is held.
pub struct Guard<'a, T: ?Sized, B: Backend> {
    lock: &'a Lock<T, B>,
    not_send: PhantomData<*mut ()>,
}

impl<T: ?Sized, B: Backend> Deref for Guard<'_, T, B> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: The lock is held.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized, B: Backend> DerefMut for Guard<'_, T, B> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: The lock is held.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized, B: Backend> Drop for Guard<'_, T, B> {
    fn drop(&mut self) {
        self.lock.raw.unlock(B::SLEEPS);
    }
}

/// A value that can be set once.
pub struct SetOnce<T>(core::cell::OnceCell<T>);

// SAFETY: All tasks are in one thread.
unsafe impl<T: Send + Sync> Sync for SetOnce<T> {}

impl<T> Default for SetOnce<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> SetOnce<T> {
    /// Returns an unset value.
    pub const fn new() -> Self {
        Self(core::cell::OnceCell::new())
    }

    /// Returns the value, if it is set.
    pub fn as_ref(&self) -> Option<&T> {
        sim::point();
        self.0.get()
    }

    /// Returns a copy of the value, if it was set.
    pub fn copy(&self) -> Option<T>
    where
        T: Copy,
    {
        self.0.get().copied()
    }

    /// Sets the value, unless there is one. Returns whether it was set.
    pub fn populate(&self, value: T) -> bool {
        sim::point();
        self.0.set(value).is_ok()
    }
}

/// A static mutex.
pub struct GlobalLock<T>(std::sync::Mutex<T>);

impl<T> GlobalLock<T> {
    /// Returns a mutex with a value.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Does nothing, as the mutex is initialized.
    ///
    /// # Safety
    ///
    /// Must be called once, as in the kernel.
    pub unsafe fn init(&self) {}

    /// Takes the lock, which all threads share.
    pub fn lock(&self) -> std::sync::MutexGuard<'_, T> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Result of a wait with a timeout.
pub enum CondVarTimeoutResult {
    /// The condition variable was notified.
    Woken {
        /// The remaining time.
        jiffies: Jiffies,
    },
    /// The task has a pending signal.
    Signal {
        /// The remaining time.
        jiffies: Jiffies,
    },
    /// The timeout has expired.
    Timeout,
}

/// A condition variable, for conditions on data that a lock protects.
pub struct CondVar(core::cell::Cell<u8>, PhantomPinned);

// SAFETY: All tasks are in one thread.
unsafe impl Sync for CondVar {}

impl CondVar {
    /// Returns an initializer.
    pub fn new() -> impl PinInit<Self> {
        Ok::<_, core::convert::Infallible>(Self(core::cell::Cell::new(0), PhantomPinned))
    }

    fn place(&self) -> usize {
        self.0.as_ptr() as usize
    }

    /// Releases the lock, waits for a notification, and takes the lock again.
    pub fn wait<T: ?Sized, B: Backend>(&self, guard: &mut Guard<'_, T, B>) {
        // No task is preempted between the release and the wait.
        guard.lock.raw.release(B::SLEEPS);
        sim::might_sleep("a condition is waited for");
        sim::wait_for(self.place());
        guard.lock.raw.lock(B::SLEEPS);
    }

    /// As [`CondVar::wait`], for at most `jiffies`. Tasks have no signals here.
    pub fn wait_interruptible_timeout<T: ?Sized, B: Backend>(
        &self,
        guard: &mut Guard<'_, T, B>,
        jiffies: Jiffies,
    ) -> CondVarTimeoutResult {
        let deadline = sim::now() + jiffies as u64 * JIFFY;
        guard.lock.raw.release(B::SLEEPS);
        sim::might_sleep("a condition is waited for");
        let woken = sim::wait_until(self.place(), Some(deadline));
        guard.lock.raw.lock(B::SLEEPS);
        if woken {
            let left = deadline.saturating_sub(sim::now()) / JIFFY;
            CondVarTimeoutResult::Woken {
                jiffies: left as Jiffies,
            }
        } else {
            CondVarTimeoutResult::Timeout
        }
    }

    /// Wakes all waiting tasks.
    pub fn notify_all(&self) {
        sim::point();
        sim::signal(self.place());
    }
}

pub mod atomic;

/// Barriers. All tasks are in one thread, so that each barrier is a preemption point, which is counted.
pub mod barrier {
    use std::cell::Cell;

    thread_local! {
        static PASSED: Cell<usize> = const { Cell::new(0) };
    }

    /// Returns the number of barriers of CPU and device that were passed since the last call.
    pub fn take_passed() -> usize {
        PASSED.take()
    }

    /// Orders reads.
    pub struct Read;
    /// Orders writes.
    pub struct Write;
    /// Orders reads and writes.
    pub struct Full;

    /// Orders accesses of CPU and device.
    pub fn dma_mb<O>(_: O) {
        PASSED.set(PASSED.get() + 1);
        sim::point();
    }

    /// Orders all accesses.
    pub fn mb<O>(_: O) {
        sim::point();
    }

    /// Orders accesses of CPUs.
    pub fn smp_mb<O>(_: O) {
        sim::point();
    }
}
