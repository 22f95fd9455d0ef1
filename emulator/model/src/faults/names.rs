// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Errors of rules, and lookup of the names in them.

use efa_hw::{admin::Opcode, features::FeatureId, regs::Register, stats::StatsType};

/// A rule is invalid.
#[allow(missing_docs, reason = "the messages describe the fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A name is unknown.
    #[error("there is no {kind} {name:?}, only {known}")]
    Unknown {
        kind: &'static str,
        name: String,
        /// Valid names, separated by commas.
        known: String,
    },
    /// The condition does not select exactly one kind of match.
    #[error("`when` needs exactly one of `opcode`, `register`, `work` and `\"reset\":true`")]
    When,
    /// The condition contradicts itself.
    #[error("`{selector}` in `when` needs {needed}")]
    Selector { selector: &'static str, needed: &'static str },
    /// The fault does not fit the condition.
    #[error("`{0}` in `then` does not fit what `when` matches")]
    Then(&'static str),
    /// Two parts of the fault contradict each other.
    #[error("`{0}` and `{1}` in `then` exclude each other")]
    Both(&'static str, &'static str),
    /// A name is empty or too long.
    #[error("the name in `hold` has {length} bytes, but it must have 1 to {most}")]
    Name { length: usize, most: usize },
    /// A byte has two values.
    #[error("`corrupt` has the byte at offset {offset} twice")]
    Twice { offset: u8 },
    /// A byte is outside of the completion.
    #[error("offset {offset} is beyond the {size} bytes of a completion")]
    Offset { offset: u8, size: u8 },
}

/// A value that has a name in rules.
pub(super) trait Named: Copy {
    /// What its type is called.
    const KIND: &'static str;

    /// Returns all values.
    fn all() -> Vec<Self>;

    fn name(self) -> &'static str;

    /// Finds the value with a name.
    fn find(name: &str) -> Result<Self, RuleError> {
        let all = Self::all();
        let found = all.iter().find(|value| value.name() == name);
        found.copied().ok_or_else(|| {
            let known: Vec<_> = all.iter().map(|value| value.name()).collect();
            let (kind, name, known) = (Self::KIND, name.to_owned(), known.join(", "));
            RuleError::Unknown { kind, name, known }
        })
    }

    /// Finds the value with a name. Returns `None` for `ANY`.
    fn find_or_any(name: &str) -> Result<Option<Self>, RuleError> {
        match name {
            "ANY" => Ok(None),
            _ => Self::find(name).map(Some),
        }
    }
}

macro_rules! named {
    ($($type:ident $kind:literal,)*) => {$(
        impl Named for $type {
            const KIND: &'static str = $kind;

            fn all() -> Vec<Self> {
                Self::ALL.to_vec()
            }

            fn name(self) -> &'static str {
                self.name()
            }
        }
    )*};
}

named! { Opcode "opcode", FeatureId "feature", StatsType "statistics", Register "register", }
