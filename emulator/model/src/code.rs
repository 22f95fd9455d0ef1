// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Codes of the device's interface in what is serialized: by their numbers.

use std::fmt::Display;

use serde::{Deserialize, Deserializer, Serializer, de::Error};

pub(crate) fn serialize<T, S>(code: &T, serializer: S) -> Result<S::Ok, S::Error>
where
    T: Copy + Into<u8>,
    S: Serializer,
{
    serializer.serialize_u8((*code).into())
}

pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: TryFrom<u8, Error: Display>,
    D: Deserializer<'de>,
{
    u8::deserialize(deserializer)?
        .try_into()
        .map_err(D::Error::custom)
}
