// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Numbered objects.

use std::{
    cell::Cell,
    collections::{HashSet, VecDeque},
    hash::Hash,
};

use efa_hw::admin::Status;

use crate::{ensure, profile::attributes::Attributes};

/// Limit on the objects of a kind that are listed.
const MAX_LISTED: usize = 256;

/// A number of an object.
pub(crate) trait Number: Copy + Eq + Hash + TryFrom<usize> + TryInto<usize> {
    /// The largest number.
    const MAX: usize;

    /// Returns the number of an object by its index.
    fn of(index: usize) -> Option<Self> {
        Self::try_from(index + 1).ok()
    }

    /// Returns the index of the object with the number.
    fn index(self) -> Option<usize> {
        self.try_into().ok()?.checked_sub(1)
    }
}

impl Number for u16 {
    /// The next number means "unknown" in some parts of the interface.
    const MAX: usize = u16::MAX as usize - 1;
}

/// Returns the number of an object of which a command has the handle.
pub(crate) fn number(handle: u32) -> Result<u16, Status> {
    u16::try_from(handle).map_err(|_| Status::IllegalParameter)
}

/// Numbers of memory regions.
impl Number for u32 {
    /// Keys have 20 bits for the number, of which one distinguishes remote keys.
    const MAX: usize = (1 << 19) - 1;
}

/// Objects identified by numbers.
///
/// Numbers start at 1, so that a number that was never set refers to nothing. A freed number is reused as late as possible,
/// even after a reset, to detect a driver that still uses it; or as early as possible if the attributes say so.
#[derive(Debug)]
pub(crate) struct Table<T, N = u16> {
    objects: Vec<Option<Object<T>>>,
    free: VecDeque<N>,
    live: usize,
    /// Numbers of objects that a reset has removed, and that were not reused since.
    ended: HashSet<N>,
    /// Whether a lookup named one of these since the last [`take_missed`](Self::take_missed).
    missed: Cell<bool>,
}

/// An object, and the number of other objects that refer to it.
#[derive(Debug)]
struct Object<T> {
    object: T,
    users: u32,
}

impl<T, N> Default for Table<T, N> {
    fn default() -> Self {
        Self { objects: Vec::new(), free: VecDeque::new(), live: 0, ended: HashSet::new(), missed: Cell::new(false) }
    }
}

impl<T, N: Number> Table<T, N> {
    /// Returns the number of objects.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// Adds an object, if there are less than `limit`, and returns its number.
    pub(crate) fn insert(&mut self, attributes: &Attributes, limit: u32, object: T) -> Result<N, Status> {
        let limit = usize::try_from(limit).unwrap_or(N::MAX).min(N::MAX);
        ensure(self.live < limit, Status::ResourceAllocationFailure)?;
        let number = if attributes.reuse_numbers && !self.free.is_empty() {
            self.free.pop_back()
        } else if self.objects.len() < limit {
            self.objects.push(None);
            N::of(self.objects.len() - 1)
        } else {
            self.free.pop_front()
        };
        let number = number.ok_or(Status::ResourceAllocationFailure)?;
        let place = number.index().and_then(|index| self.objects.get_mut(index));
        let place = place.ok_or(Status::ResourceAllocationFailure)?;
        *place = Some(Object { object, users: 0 });
        self.live += 1;
        self.ended.remove(&number);
        Ok(number)
    }

    /// Returns the object with a number.
    pub(crate) fn get(&self, number: N) -> Result<&T, Status> {
        let place = number.index().and_then(|index| self.objects.get(index));
        match place {
            Some(Some(it)) => Ok(&it.object),
            _ => Err(self.miss(number)),
        }
    }

    /// Returns the object with a number.
    pub(crate) fn get_mut(&mut self, number: N) -> Result<&mut T, Status> {
        self.find(number).map(|it| &mut it.object)
    }

    fn find(&mut self, number: N) -> Result<&mut Object<T>, Status> {
        self.get(number)?;
        let place = number.index().and_then(|index| self.objects.get_mut(index));
        place.and_then(Option::as_mut).ok_or(Status::IllegalParameter)
    }

    /// Removes the object with a number.
    pub(crate) fn remove(&mut self, number: N) -> Result<T, Status> {
        self.get(number)?;
        let place = number.index().and_then(|index| self.objects.get_mut(index));
        let it = place.and_then(Option::take).ok_or(Status::IllegalParameter)?;
        self.live -= 1;
        self.free.push_back(number);
        Ok(it.object)
    }

    /// Adds a user of an object that is known to exist.
    pub(crate) fn add_user(&mut self, number: N) {
        if let Ok(it) = self.find(number) {
            it.users += 1;
        }
    }

    /// Removes a user of an object.
    pub(crate) fn remove_user(&mut self, number: N) {
        if let Ok(it) = self.find(number) {
            it.users -= 1;
        }
    }

    /// Removes an object that has no users.
    pub(crate) fn remove_unused(&mut self, number: N) -> Result<T, Status> {
        ensure(self.find(number)?.users == 0, Status::ResourceBusy)?;
        self.remove(number)
    }

    /// Removes all objects, as a reset does.
    pub(crate) fn end(&mut self) {
        for (number, object) in (0..).map_while(N::of).zip(&mut self.objects) {
            if object.take().is_some() {
                self.free.push_back(number);
                self.ended.insert(number);
            }
        }
        self.live = 0;
    }

    /// Returns the status for a lookup of a missing object. Records whether a reset has removed it.
    fn miss(&self, number: N) -> Status {
        if self.ended.contains(&number) {
            self.missed.set(true);
        }
        Status::IllegalParameter
    }

    /// Returns whether a lookup since the last call named an object that a reset has removed.
    pub(crate) fn take_missed(&self) -> bool {
        self.missed.take()
    }

    /// All objects, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.objects.iter().flatten().map(|it| &it.object)
    }

    /// All objects with their numbers.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (N, &T)> {
        let objects = (0..).map_while(N::of).zip(&self.objects);
        objects.filter_map(|(number, it)| Some((number, &it.as_ref()?.object)))
    }

    /// Describes the first [`MAX_LISTED`] objects, as there may be very many.
    pub(crate) fn first<'a, V>(&'a self, describe: impl FnMut((N, &'a T)) -> V) -> Vec<V> {
        self.numbered().take(MAX_LISTED).map(describe).collect()
    }
}
