// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Numbered objects.

use std::{
    cell::Cell,
    collections::{HashSet, VecDeque},
};

use efa_hw::admin::Status;

use crate::snapshot::MAX_LISTED;

/// Objects that are known by a number.
///
/// Numbers start at 1, so that a number that was never set refers to nothing. One that was freed is
/// given out again as late as possible, so that a driver that uses it after that is noticed. This holds over resets, too.
#[derive(Debug)]
pub(crate) struct Table<T> {
    objects: Vec<Option<T>>,
    free: VecDeque<u16>,
    live: usize,
    /// Numbers of objects that a reset has ended, and that were not given out again since.
    ended: HashSet<u16>,
    /// Whether one of these was looked for.
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
    /// Most objects of a kind; also the largest number. The one above it means "unknown" in some
    /// parts of the interface.
    const MAX: usize = u16::MAX as usize - 1;

    /// How many objects there are.
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

    /// Removes all, as a reset does.
    pub(crate) fn end(&mut self) {
        for (number, object) in (1..).zip(&mut self.objects) {
            if object.take().is_some() {
                self.free.push_back(number);
                self.ended.insert(number);
            }
        }
        self.live = 0;
    }

    /// What somebody who looks for an object is told that does not exist.
    fn miss(&self, number: u16) -> Status {
        if self.ended.contains(&number) {
            self.missed.set(true);
        }
        Status::IllegalParameter
    }

    /// Whether an object was looked for since the last call that a reset has ended.
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

    /// The first of them, of which there may be very many.
    pub(super) fn first(&self) -> impl Iterator<Item = (u16, &T)> {
        self.numbered().take(MAX_LISTED)
    }
}

/// How many other objects need one that they refer to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Users(u32);

impl Users {
    pub(crate) fn add(&mut self) {
        self.0 += 1;
    }

    pub(crate) fn remove(&mut self) {
        self.0 -= 1;
    }

    /// Fails if there are any.
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
    /// Takes note of a new user of an object that was just seen to exist.
    pub(crate) fn add_user(&mut self, number: u16) {
        if let Ok(object) = self.get_mut(number) {
            object.users().add();
        }
    }

    /// Takes note that a user is gone.
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
