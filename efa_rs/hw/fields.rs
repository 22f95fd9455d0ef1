// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The fields of a structure as values, for those who show, hide or vary all of them.
//!
//! The driver does none of this, so its build has no descriptions.

/// A field of a structure.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// Its name.
    pub name: &'static str,
    /// Number of bits before it.
    pub bit: usize,
    /// Number of its bits; 0 if it is encoded elsewhere.
    pub bits: usize,
    /// Its meaning.
    pub kind: Kind,
}

/// What a field means.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A number.
    Number,
    /// A number that is written in hexadecimal.
    Hex,
    /// The number of an object, which the device assigns.
    Id,
    /// As [`Kind::Id`], for the keys of memory regions.
    Key,
    /// An address of memory.
    Address,
    /// Whether something is true.
    Flag,
    /// One of numbered values with names.
    Code(&'static [(u32, &'static str)]),
    /// A GID.
    Gid,
    /// Bytes whose meaning depends on other fields.
    Bytes,
    /// A structure with these fields.
    Fields(&'static [Item]),
}

impl Item {
    /// Returns the value of the field in an encoded structure, at most 64 bits of it.
    pub fn get(&self, bytes: &[u8]) -> u64 {
        let is_set = |bit: usize| {
            bytes
                .get(bit / 8)
                .is_some_and(|byte| (byte >> (bit % 8)) & 1 != 0)
        };
        (0..self.bits.min(64)).fold(0, |value, bit| {
            value | (u64::from(is_set(self.bit + bit)) << bit)
        })
    }

    /// Sets the value of the field in an encoded structure, at most 64 bits of it.
    pub fn put(&self, bytes: &mut [u8], value: u64) {
        for index in 0..self.bits.min(64) {
            let bit = self.bit + index;
            if let Some(byte) = bytes.get_mut(bit / 8) {
                *byte &= !(1 << (bit % 8));
                // CAST: of one bit.
                *byte |= (((value >> index) & 1) as u8) << (bit % 8);
            }
        }
    }
}

/// Calls `visit` with each field of a structure, and instead of a structure within it with the
/// fields of that.
pub fn leaves(items: &[Item], visit: &mut dyn FnMut(Item)) {
    for item in items {
        let Kind::Fields(inner) = item.kind else {
            visit(*item);
            continue;
        };
        leaves(inner, &mut |field| {
            visit(Item {
                bit: item.bit + field.bit,
                ..field
            })
        });
    }
}

/// A type whose values are fields.
pub trait Described {
    /// What such a field means.
    const KIND: Kind;

    /// Fields of the type, if it is a structure.
    const FIELDS: &'static [Item] = match Self::KIND {
        Kind::Fields(items) => items,
        _ => &[],
    };
}

macro_rules! kinds_of_types {
    ($($type:ty: $kind:ident,)*) => {$(
        impl Described for $type {
            const KIND: Kind = Kind::$kind;
        }
    )*};
}

kinds_of_types! {
    u8: Number,
    u16: Number,
    u32: Number,
    u64: Number,
    bool: Flag,
    kinds::Hex: Hex,
    kinds::Id: Id,
    kinds::Key: Key,
    kinds::Address: Address,
    kinds::Gid: Gid,
}

impl<const N: usize> Described for [u8; N] {
    const KIND: Kind = Kind::Bytes;
}

/// Kinds that the tables name, besides those that follow from a field's type.
#[allow(missing_docs, reason = "`Kind` describes them")]
pub mod kinds {
    pub struct Hex;
    pub struct Id;
    pub struct Key;
    pub struct Address;
    pub struct Gid;
}

/// Describes what a macro of [`wire`](super::wire) makes, from its table.
macro_rules! described {
    (layout $name:ident: $($field:ident [$($offset:literal)?] $type:ty [$($kind:ident)?];)*) => {
        wire::described! { fields $name: $(
            wire::described!(item $field [$($offset)?] $type [$($kind)?]),
        )* }
    };
    (item $field:ident [] $type:ty []) => {
        wire::Item { name: stringify!($field), bit: 0, bits: 0, kind: wire::Kind::Bytes }
    };
    (item $field:ident [$offset:literal] $type:ty [$($kind:ident)?]) => {
        wire::Item {
            name: stringify!($field),
            bit: 8 * $offset,
            bits: 8 * core::mem::size_of::<<$type as wire::Field>::Bytes>(),
            kind: wire::described!(kind $type $(, $kind)?),
        }
    };
    (bits $name:ident: $($field:ident $high:literal $low:literal $type:ty [$($kind:ident)?];)*) => {
        wire::described! { fields $name: $(wire::Item {
            name: stringify!($field),
            bit: $low,
            bits: $high - $low + 1,
            kind: wire::described!(kind $type $(, $kind)?),
        },)* }
    };
    (fields $name:ident: $($item:expr,)*) => {
        impl wire::Described for $name {
            const KIND: wire::Kind = {
                #[allow(unused_imports, reason = "not all tables name a kind")]
                use wire::kinds::*;
                wire::Kind::Fields(&[$($item),*])
            };
        }
    };
    (codes $name:ident: $($value:literal $text:literal)*) => {
        impl wire::Described for $name {
            const KIND: wire::Kind = wire::Kind::Code(&[$(($value, $text)),*]);
        }
    };
    (kind $type:ty) => {
        <$type as wire::Described>::KIND
    };
    (kind $type:ty, $kind:ident) => {
        <$kind as wire::Described>::KIND
    };
}

pub(crate) use described;
