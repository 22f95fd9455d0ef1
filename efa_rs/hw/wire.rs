// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Descriptions of little-endian structures that two sides share.
//!
//! Each macro makes a plain Rust type and both directions of its conversion from one table. A field
//! outside of its structure, overlapping fields, and a Rust type too small for its bits are
//! compile-time errors. The conversions can not panic, whatever the input.
//!
//! The macros name this module as `wire`, so a file that calls one must import it by that name.

use core::fmt;

#[cfg(not(MODULE))]
pub(crate) use super::fields::{
    described,
    kinds,
    Described,
    Item,
    Kind, //
};

/// A value with a fixed encoding.
pub trait Field: Sized {
    /// The encoding: an array of bytes.
    type Bytes;

    /// Decodes a value; every array of bytes is valid.
    fn from_bytes(bytes: Self::Bytes) -> Self;

    /// Encodes the value.
    fn to_bytes(&self) -> Self::Bytes;
}

macro_rules! integer_field {
    ($($integer:ty),*) => {$(
        impl Field for $integer {
            type Bytes = [u8; core::mem::size_of::<$integer>()];

            #[inline]
            fn from_bytes(bytes: Self::Bytes) -> Self {
                Self::from_le_bytes(bytes)
            }

            #[inline]
            fn to_bytes(&self) -> Self::Bytes {
                self.to_le_bytes()
            }
        }
    )*};
}

integer_field!(u8, u16, u32, u64);

/// One byte; anything but zero is `true`.
impl Field for bool {
    type Bytes = [u8; 1];

    #[inline]
    fn from_bytes([byte]: Self::Bytes) -> Self {
        byte != 0
    }

    #[inline]
    fn to_bytes(&self) -> Self::Bytes {
        [u8::from(*self)]
    }
}

impl<const N: usize> Field for [u8; N] {
    type Bytes = [u8; N];

    #[inline]
    fn from_bytes(bytes: Self::Bytes) -> Self {
        bytes
    }

    #[inline]
    fn to_bytes(&self) -> Self::Bytes {
        *self
    }
}

/// An offset in a structure.
pub struct At<const OFFSET: usize>;

impl<const OFFSET: usize> At<OFFSET> {
    /// Returns the bytes at this offset.
    #[inline]
    pub fn load<const LEN: usize, const SIZE: usize>(bytes: &[u8; SIZE]) -> [u8; LEN] {
        const {
            assert!(
                OFFSET + LEN <= SIZE,
                "the field is outside of its structure"
            )
        };
        let mut field = [0; LEN];
        // Never out of bounds: the assertion above holds for every instance of this function.
        field.copy_from_slice(&bytes[OFFSET..OFFSET + LEN]);
        field
    }

    /// Replaces the bytes at this offset.
    #[inline]
    pub fn store<const LEN: usize, const SIZE: usize>(bytes: &mut [u8; SIZE], field: [u8; LEN]) {
        const {
            assert!(
                OFFSET + LEN <= SIZE,
                "the field is outside of its structure"
            )
        };
        // Never out of bounds: the assertion above holds for every instance of this function.
        bytes[OFFSET..OFFSET + LEN].copy_from_slice(&field);
    }
}

/// Stops the build if two fields, each given as offset and length, overlap or one exceeds `size`.
pub const fn check_layout(size: usize, fields: &[(usize, usize)]) {
    let mut i = 0;
    while i < fields.len() {
        let (offset, length) = fields[i];
        assert!(
            offset + length <= size,
            "the field is outside of its structure"
        );
        let mut j = 0;
        while j < i {
            let (other, other_length) = fields[j];
            assert!(
                offset + length <= other || other + other_length <= offset,
                "two fields overlap"
            );
            j += 1;
        }
        i += 1;
    }
}

/// A value of some bits within a word.
pub trait BitField: Sized {
    /// Number of bits that the type can hold.
    const WIDTH: u32;

    /// Decodes the value from bits, of which all above the low [`Self::WIDTH`] are zero.
    fn from_bits(bits: u32) -> Self;

    /// Returns the value as bits.
    fn to_bits(self) -> u32;
}

impl BitField for bool {
    const WIDTH: u32 = 1;

    #[inline]
    fn from_bits(bits: u32) -> Self {
        bits != 0
    }

    #[inline]
    fn to_bits(self) -> u32 {
        u32::from(self)
    }
}

macro_rules! integer_bit_field {
    ($($integer:ty),*) => {$(
        impl BitField for $integer {
            const WIDTH: u32 = <$integer>::BITS;

            #[inline]
            fn from_bits(bits: u32) -> Self {
                // CAST: `bits` has at most `WIDTH` bits.
                bits as $integer
            }

            #[inline]
            fn to_bits(self) -> u32 {
                u32::from(self)
            }
        }
    )*};
}

integer_bit_field!(u8, u16, u32);

/// Returns the mask of the bits `high` down to `low`, both included.
pub const fn mask(high: u32, low: u32) -> u32 {
    assert!(
        high < u32::BITS && low <= high,
        "the bits are not within a word, or in the wrong order"
    );
    (u32::MAX >> (u32::BITS - 1 - (high - low))) << low
}

/// Returns the union of the masks of `fields`, each given as high bit, low bit and width of its
/// type. Stops the build if two overlap, one exceeds `width`, or its type can't hold it.
pub const fn check_bits(width: u32, fields: &[(u32, u32, u32)]) -> u32 {
    let mut union = 0;
    let mut i = 0;
    while i < fields.len() {
        let (high, low, type_width) = fields[i];
        let bits = mask(high, low);
        assert!(high < width, "the bit field is outside of its word");
        assert!(
            high - low < type_width,
            "the bit field is wider than its type"
        );
        assert!(union & bits == 0, "two bit fields overlap");
        union |= bits;
        i += 1;
    }
    union
}

/// A number for which its type defines no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undefined(pub u32);

impl fmt::Display for Undefined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} has no meaning in the interface", self.0)
    }
}

impl core::error::Error for Undefined {}

/// Makes a structure with its encoding, from a table of `field @ offset: type`, and of what the field
/// means if its type does not say it: `as` one of `wire::kinds`, or as one of `codes!`.
///
/// A field without an offset belongs to the structure, but is encoded elsewhere: its value is not in
/// the encoding, and decodes as the default.
///
/// ```text
/// layout! {
///     /// What it is.
///     pub struct Name[size in bytes] {
///         /// What it means.
///         field @ 4: u16 as Id,
///         /// What it means, and where it is.
///         other: u8,
///     }
/// }
/// ```
macro_rules! layout {
    (
        $(#[$meta:meta])*
        pub struct $name:ident[$size:literal] {
            $(
                $(#[$field_meta:meta])*
                $field:ident $(@ $offset:literal)?: $type:ty $(as $kind:ident)?,
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $(
                $(#[$field_meta])*
                pub $field: $type,
            )*
        }

        const _: () = wire::check_layout(
            $size,
            &[$($(($offset, core::mem::size_of::<<$type as wire::Field>::Bytes>()),)?)*],
        );

        impl $name {
            /// Length of the encoding in bytes.
            pub const SIZE: usize = $size;

            /// Encodes the structure, with zeroes outside of fields.
            #[inline]
            pub fn encode(&self) -> [u8; $size] {
                #[allow(unused_mut, reason = "a structure may have no fields")]
                let mut bytes = [0; $size];
                $($(wire::At::<$offset>::store(&mut bytes, wire::Field::to_bytes(&self.$field));)?)*
                bytes
            }

            /// Decodes the structure; bytes outside of fields have no effect.
            #[inline]
            #[allow(unused_variables, reason = "a structure may have no fields")]
            pub fn decode(bytes: &[u8; $size]) -> Self {
                Self {
                    $($field: wire::layout!(@decode bytes, $type $(, $offset)?),)*
                }
            }
        }

        /// All fields zero.
        impl Default for $name {
            #[inline]
            fn default() -> Self {
                Self::decode(&[0; $size])
            }
        }

        impl wire::Field for $name {
            type Bytes = [u8; $size];

            #[inline]
            fn from_bytes(bytes: Self::Bytes) -> Self {
                Self::decode(&bytes)
            }

            #[inline]
            fn to_bytes(&self) -> Self::Bytes {
                self.encode()
            }
        }

        #[cfg(not(MODULE))]
        wire::described! { layout $name: $($field [$($offset)?] $type [$($kind)?];)* }
    };
    (@decode $bytes:ident, $type:ty, $offset:literal) => {
        <$type as wire::Field>::from_bytes(wire::At::<$offset>::load($bytes))
    };
    (@decode $bytes:ident, $type:ty) => {
        <$type>::default()
    };
}

/// Makes a structure of the bit fields of one word, from a table of `high:low field => type`, and of
/// what a field means as for `layout!`.
///
/// ```text
/// bits! {
///     /// What it is.
///     pub struct Name(u32) {
///         /// What it means.
///         5:1 field => u8,
///     }
/// }
/// ```
macro_rules! bits {
    (
        $(#[$meta:meta])*
        pub struct $name:ident($word:ty) {
            $(
                $(#[$field_meta:meta])*
                $high:literal:$low:literal $field:ident => $type:ty $(as $kind:ident)?,
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $(
                $(#[$field_meta])*
                pub $field: $type,
            )*
        }

        impl $name {
            /// The defined bits; the others are reserved.
            pub const DEFINED: $word = wire::check_bits(
                <$word>::BITS,
                &[$(($high, $low, <$type as wire::BitField>::WIDTH)),*],
                // CAST: `check_bits` found no bit outside of the word.
            ) as $word;

            /// Decodes the fields from a word; reserved bits have no effect.
            #[inline]
            pub fn from_raw(word: $word) -> Self {
                let word = u32::from(word);
                Self {
                    $($field: wire::BitField::from_bits(
                        (word & const { wire::mask($high, $low) }) >> $low,
                    ),)*
                }
            }

            /// Encodes the fields as a word. A value too large for its field is truncated.
            #[inline]
            pub fn into_raw(self) -> $word {
                let word = 0 $(
                    | (wire::BitField::to_bits(self.$field) << $low)
                        & const { wire::mask($high, $low) }
                )*;
                // CAST: no field is outside of the word, see `DEFINED`.
                word as $word
            }
        }

        impl wire::Field for $name {
            type Bytes = <$word as wire::Field>::Bytes;

            #[inline]
            fn from_bytes(bytes: Self::Bytes) -> Self {
                Self::from_raw(<$word as wire::Field>::from_bytes(bytes))
            }

            #[inline]
            fn to_bytes(&self) -> Self::Bytes {
                wire::Field::to_bytes(&self.into_raw())
            }
        }

        #[cfg(not(MODULE))]
        wire::described! { bits $name: $($field $high $low $type [$($kind)?];)* }
    };
}

/// Makes an enumeration of numbered values with the names that the interface gives them.
///
/// ```text
/// codes! {
///     /// What it is.
///     pub enum Name: u8 {
///         /// What it means.
///         Variant = 1 => "VARIANT",
///     }
/// }
/// ```
macro_rules! codes {
    (
        $(#[$meta:meta])*
        pub enum $name:ident: $integer:ty {
            $(
                $(#[$variant_meta:meta])*
                $variant:ident = $value:literal => $text:literal,
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr($integer)]
        pub enum $name {
            $(
                $(#[$variant_meta])*
                $variant = $value,
            )*
        }

        impl $name {
            /// All defined values, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the name that the interface gives the value.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl TryFrom<$integer> for $name {
            type Error = wire::Undefined;

            #[inline]
            fn try_from(value: $integer) -> Result<Self, wire::Undefined> {
                match value {
                    $($value => Ok(Self::$variant),)*
                    _ => Err(wire::Undefined(u32::from(value))),
                }
            }
        }

        impl From<$name> for $integer {
            #[inline]
            fn from(value: $name) -> Self {
                // CAST: the enumeration's representation is this integer.
                value as $integer
            }
        }

        #[cfg(not(MODULE))]
        wire::described! { codes $name: $($value $text)* }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

pub(crate) use {
    bits,
    codes,
    layout, //
};
