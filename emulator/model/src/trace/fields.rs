// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Fields of structures as text.

use std::{
    fmt::{self, Display, Formatter},
    net::Ipv6Addr,
};

use efa_hw::fields::{Described, Item, Kind};

/// The name of a numbered value, or the number with `what` before it if it has no name.
pub(super) fn code<T: Display>(name: Result<T, impl Sized>, what: &str, number: impl Display) -> String {
    match name {
        Ok(name) => name.to_string(),
        Err(_) => format!("{what} {number}"),
    }
}

/// Writes fields as a list.
pub(super) struct Fields<'a, 'b> {
    pub(super) f: &'a mut Formatter<'b>,
    /// What to write before the next field.
    pub(super) separator: &'static str,
    /// Whether fields of zero are written, other than flags.
    pub(super) zeros: bool,
    /// Names of fields that are not written.
    pub(super) without: &'static [&'static str],
}

impl Fields<'_, '_> {
    pub(super) fn of<T: Described>(&mut self, bytes: &[u8]) -> fmt::Result {
        self.write(T::FIELDS, bytes)
    }

    /// Writes the fields in brackets, as one of several structures.
    pub(super) fn one<T: Described>(&mut self, bytes: &[u8]) -> fmt::Result {
        write!(self.f, "{}[", self.separator)?;
        self.separator = "";
        self.of::<T>(bytes)?;
        self.separator = ", ";
        self.f.write_str("]")
    }

    /// Writes `name=value` for each field. Of flags, those that are set have their name: as `word=name+name` if all bits of a
    /// word are flags.
    pub(super) fn write(&mut self, fields: &[Item], bytes: &[u8]) -> fmt::Result {
        for field in fields.iter().filter(|field| !self.without.contains(&field.name)) {
            let value = field.get(bytes);
            let own = bytes.get(field.bit / 8..).unwrap_or_default();
            match field.kind {
                Kind::Fields(inner) if inner.iter().all(|one| matches!(one.kind, Kind::Flag)) => {
                    let set = inner.iter().filter(|one| one.get(own) != 0 && !self.without.contains(&one.name));
                    let names: Vec<_> = set.map(|one| one.name).collect();
                    if !names.is_empty() {
                        self.named(field, names.join("+"))?;
                    }
                }
                Kind::Fields(inner) => self.write(inner, own)?,
                Kind::Flag if value != 0 => {
                    write!(self.f, "{}{}", self.separator, field.name)?;
                    self.separator = ", ";
                }
                Kind::Flag | Kind::Bytes => {}
                Kind::Code(names) => match names.iter().find(|(number, _)| u64::from(*number) == value) {
                    Some((_, name)) => self.named(field, name)?,
                    None => self.named(field, value)?,
                },
                Kind::Gid => {
                    let gid = own.first_chunk().copied().unwrap_or([0; 16]);
                    self.named(field, Ipv6Addr::from(gid))?;
                }
                _ if value == 0 && !self.zeros => {}
                Kind::Hex | Kind::Key | Kind::Address => self.named(field, format_args!("{value:#x}"))?,
                Kind::Number | Kind::Id => self.named(field, value)?,
            }
        }
        Ok(())
    }

    fn named(&mut self, field: &Item, value: impl Display) -> fmt::Result {
        write!(self.f, "{}{}={value}", self.separator, field.name)?;
        self.separator = ", ";
        Ok(())
    }
}
