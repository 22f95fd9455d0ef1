// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Numbered objects.

use std::{
    cell::Cell,
    collections::{HashSet, VecDeque},
};

use efa_hw::admin::Status;

use crate::snapshot::MAX_LISTED;

/// Objects identified by numbers.
///
/// Numbers start at 1, so that a number that was never set refers to nothing. A freed number is reused as late as possible,
/// even after a reset, to detect a driver that still uses it.
#[derive(Debug)]
pub(crate) struct Table<T> {
    objects: Vec<Option<T>>,
    free: VecDeque<u16>,
    live: usize,
    /// Numbers of objects that a reset has removed, and that were not reused since.
    ended: HashSet<u16>,
    /// Whether a lookup named one of these since the last [`take_missed`](Self::take_missed).
    missed: Cell<bool>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            objects: Vec::new(),
            free: VecDeque::new(),
            live: 0,
            ended: HashSet::new(),
            missed: Cell::new(false),
        }
    }
}

impl<T> Table<T> {
    /// Limit on objects of a kind, and largest number. The next number means "unknown" in some parts of the interface.
    const MAX: usize = u16::MAX as usize - 1;

    /// Returns the number of objects.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// Adds an object, if there are less than `limit`, and returns its number.
    pub(crate) fn insert(&mut self, limit: u32, object: T) -> Result<u16, Status> {
        let limit = usize::try_from(limit).unwrap_or(Self::MAX).min(Self::MAX);
        if self.live >= limit {
            return Err(Status::ResourceAllocationFailure);
        }
        let number = if self.objects.len() < limit {
            self.objects.push(None);
            // CAST: there are at most `MAX` objects.
            self.objects.len() as u16
        } else {
            self.free
                .pop_front()
                .ok_or(Status::ResourceAllocationFailure)?
        };
        self.live += 1;
        self.ended.remove(&number);
        self.objects[usize::from(number) - 1] = Some(object);
        Ok(number)
    }

    /// Returns the object with a number.
    pub(crate) fn get(&self, number: u16) -> Result<&T, Status> {
        usize::from(number)
            .checked_sub(1)
            .and_then(|index| self.objects.get(index)?.as_ref())
            .ok_or_else(|| self.miss(number))
    }

    /// Returns the object with a number.
    pub(crate) fn get_mut(&mut self, number: u16) -> Result<&mut T, Status> {
        self.get(number)?;
        self.objects[usize::from(number) - 1]
            .as_mut()
            .ok_or(Status::IllegalParameter)
    }

    /// Removes the object with a number.
    pub(crate) fn remove(&mut self, number: u16) -> Result<T, Status> {
        self.get(number)?;
        let object = self.objects[usize::from(number) - 1]
            .take()
            .ok_or(Status::IllegalParameter)?;
        self.live -= 1;
        self.free.push_back(number);
        Ok(object)
    }

    /// Removes all objects, as a reset does.
    pub(crate) fn end(&mut self) {
        for (number, object) in (1..).zip(&mut self.objects) {
            if object.take().is_some() {
                self.free.push_back(number);
                self.ended.insert(number);
            }
        }
        self.live = 0;
    }

    /// Returns the status for a lookup of a missing object. Records whether a reset has removed it.
    fn miss(&self, number: u16) -> Status {
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
        self.objects.iter().flatten()
    }

    /// All objects with their numbers.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (u16, &T)> {
        let objects = (1..=u16::MAX).zip(&self.objects);
        objects.filter_map(|(number, object)| Some((number, object.as_ref()?)))
    }

    /// Returns the first [`MAX_LISTED`] objects, as there may be very many.
    pub(super) fn first(&self) -> impl Iterator<Item = (u16, &T)> {
        self.numbered().take(MAX_LISTED)
    }
}

/// Number of other objects that refer to an object.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Users(u32);

impl Users {
    pub(crate) fn add(&mut self) {
        self.0 += 1;
    }

    pub(crate) fn remove(&mut self) {
        self.0 -= 1;
    }

    /// Fails if there are users.
    pub(crate) fn none(self) -> Result<(), Status> {
        if self.0 == 0 {
            Ok(())
        } else {
            Err(Status::ResourceBusy)
        }
    }
}

/// An object that others refer to.
pub(crate) trait Shared {
    fn users(&mut self) -> &mut Users;
}

impl Shared for Users {
    fn users(&mut self) -> &mut Users {
        self
    }
}

impl<T: Shared> Table<T> {
    /// Adds a user of an object that is known to exist.
    pub(crate) fn add_user(&mut self, number: u16) {
        if let Ok(object) = self.get_mut(number) {
            object.users().add();
        }
    }

    /// Removes a user of an object.
    pub(crate) fn remove_user(&mut self, number: u16) {
        if let Ok(object) = self.get_mut(number) {
            object.users().remove();
        }
    }

    /// Removes an object that has no users.
    pub(crate) fn remove_unused(&mut self, number: u16) -> Result<T, Status> {
        self.get_mut(number)?.users().none()?;
        self.remove(number)
    }
}
