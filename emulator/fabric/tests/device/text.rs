// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands, fields and values in the texts of tests.

pub(crate) use efa_hw::fields::Described;
use efa_hw::fields::{Item, Kind};

use super::*;

/// Returns changed copies of an encoded structure, each with its changes. A text has the fields and their values, such as
/// `depth=0,65 caps.virt=1`. A copy has the values at one place of each list, or the only ones. `+` adds to a value, and `@` is an
/// offset in bytes.
pub(crate) fn changed<const N: usize>(fields: &[Item], good: [u8; N], text: &str) -> Vec<[u8; N]> {
    let changes = text.split_whitespace().map(|change| {
        let (path, values) = change.split_once('=').expect(change);
        (field(fields, path), values.split(',').collect::<Vec<_>>())
    });
    let changes: Vec<_> = changes.collect();
    let count = changes.iter().map(|(_, values)| values.len()).max();
    let copies = (0..count.unwrap_or(1)).map(|index| {
        let mut bytes = good;
        for (item, values) in &changes {
            let value = values[index.min(values.len() - 1)];
            let before = item.get(&bytes);
            match value.strip_prefix('+') {
                Some(more) => item.put(&mut bytes, before.wrapping_add(number(more))),
                None => item.put(&mut bytes, number(value)),
            }
        }
        bytes
    });
    copies.collect()
}

/// Finds a field by its name, those of the structures around it, or its offset.
pub(crate) fn field(fields: &[Item], path: &str) -> Item {
    if let Some(offset) = path.strip_prefix('@') {
        return Item { name: "", bit: 8 * number(offset) as usize, bits: 8, kind: Kind::Number };
    }
    let (name, rest) = path.split_once('.').unwrap_or((path, ""));
    let item = *fields.iter().find(|item| item.name == name).expect(path);
    let inner = match item.kind {
        _ if rest.is_empty() => return item,
        Kind::Fields(inner) => field(inner, rest),
        _ => field(InlinePages::FIELDS, rest),
    };
    Item { bit: item.bit + inner.bit, ..inner }
}

pub(crate) fn number(text: &str) -> u64 {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.expect(text)
}

/// Returns copies of a command with changed fields, and with `control=` and flags for the kind of its control buffer at the end.
pub(crate) fn commands(good: &AqRequest, text: &str) -> Vec<AqRequest> {
    let opcode = Opcode::try_from(good.opcode).unwrap();
    let (changes, flags) = text.split_once("control=").unwrap_or((text, "0"));
    let payloads = changed(fields_of(opcode)[0], good.payload, changes);
    let of_flags = |flags| {
        let control = AqFlags::from_raw(number(flags) as u8);
        payloads.iter().map(move |payload| AqRequest { control, payload: *payload, ..*good })
    };
    flags.split(',').flat_map(of_flags).collect()
}

/// Returns the profile with this name.
pub(crate) fn profile(name: &str) -> Profile {
    let name = format!("{name:?}").to_lowercase();
    serde_json::from_str(&name).expect(&name)
}

/// Returns the one with this name.
pub(crate) fn named<T: Copy + ToString>(all: &[T], name: &str) -> T {
    *all.iter().find(|it| it.to_string() == name).expect(name)
}
