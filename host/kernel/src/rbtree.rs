// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Maps with the contract of the kernel's red-black trees.

use std::collections::BTreeMap;

use crate::alloc::{flags::Flags, AllocError, Counted};

/// A map, sorted by key.
pub struct RBTree<K, V>(BTreeMap<K, (V, Counted)>);

/// A node outside of trees.
pub struct RBTreeNode<K, V>(K, V, Counted);

/// Memory for a node.
pub struct RBTreeNodeReservation<K, V>(Counted, core::marker::PhantomData<(K, V)>);

impl<K, V> RBTreeNodeReservation<K, V> {
    /// Allocates memory.
    ///
    /// # Errors
    ///
    /// An [`AllocError`] if there is none.
    pub fn new(flags: Flags) -> Result<Self, AllocError> {
        flags.allow()?;
        Ok(Self(
            Counted::new(size_of::<(K, V)>()),
            core::marker::PhantomData,
        ))
    }

    /// Converts the memory to a node.
    pub fn into_node(self, key: K, value: V) -> RBTreeNode<K, V> {
        RBTreeNode(key, value, self.0)
    }
}

impl<K, V> RBTreeNode<K, V> {
    /// Allocates a node.
    ///
    /// # Errors
    ///
    /// An [`AllocError`] if there is no memory.
    pub fn new(key: K, value: V, flags: Flags) -> Result<Self, AllocError> {
        Ok(RBTreeNodeReservation::new(flags)?.into_node(key, value))
    }
}

impl<K, V> RBTree<K, V> {
    /// Returns an empty tree.
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Returns all values, by key.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.0
            .values()
            .map(|(value, _)| value)
            .inspect(|_| sim::count_step())
    }

    /// Returns all values, by key.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0
            .values_mut()
            .map(|(value, _)| value)
            .inspect(|_| sim::count_step())
    }

    /// Returns all keys.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }

    /// Returns all keys and values.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0
            .iter()
            .map(|(key, (value, _))| (key, value))
            .inspect(|_| sim::count_step())
    }
}

impl<K, V> Default for RBTree<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord + Clone, V> RBTree<K, V> {
    /// Inserts a node. Returns the node that it replaces, if any.
    pub fn insert(&mut self, node: RBTreeNode<K, V>) -> Option<RBTreeNode<K, V>> {
        let RBTreeNode(key, value, counted) = node;
        let before = self.0.insert(key.clone(), (value, counted));
        before.map(|(value, counted)| RBTreeNode(key, value, counted))
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.0.get(key).map(|(value, _)| value)
    }

    /// Returns the value of a key.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.0.get_mut(key).map(|(value, _)| value)
    }

    /// Removes a key, and returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.0.remove(key).map(|(value, _)| value)
    }

    /// Removes a key, and returns its node.
    pub fn remove_node(&mut self, key: &K) -> Option<RBTreeNode<K, V>> {
        let (value, counted) = self.0.remove(key)?;
        Some(RBTreeNode(key.clone(), value, counted))
    }

    /// Returns a cursor to the first key that is not less than `key`.
    pub fn cursor_lower_bound(&self, key: &K) -> Option<Cursor<'_, K, V>> {
        Some(Cursor(self.0.range(key..).next()?))
    }

    /// Returns a cursor to the first key that is not less than `key`.
    pub fn cursor_lower_bound_mut(&mut self, key: &K) -> Option<CursorMut<'_, K, V>> {
        let key = self.0.range(key..).next()?.0.clone();
        Some(CursorMut { tree: self, key })
    }
}

/// A cursor at a node of a tree that does not change.
pub struct Cursor<'a, K, V>((&'a K, &'a (V, Counted)));

impl<K, V> Cursor<'_, K, V> {
    /// Returns the key and the value.
    pub fn current(&self) -> (&K, &V) {
        (self.0 .0, &self.0 .1 .0)
    }
}

/// A cursor at a node of a tree.
pub struct CursorMut<'a, K, V> {
    tree: &'a mut RBTree<K, V>,
    key: K,
}

impl<K: Ord + Clone, V> CursorMut<'_, K, V> {
    /// Returns the key and the value.
    pub fn current(&self) -> (&K, &V) {
        let (key, (value, _)) = self.tree.0.get_key_value(&self.key).expect("a node");
        (key, value)
    }

    /// Removes the node, and returns a cursor to the next one.
    pub fn remove_current(self) -> (Option<Self>, RBTreeNode<K, V>) {
        let node = self.tree.remove_node(&self.key).expect("a node");
        (self.tree.cursor_lower_bound_mut(&self.key), node)
    }
}
