// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What is wrong with a rule, and how it names things.

/// A rule does not make sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A name is unknown.
    #[error("there is no {kind} {name:?}, only {known}")]
    Unknown {
        /// What it should have been.
        kind: &'static str,
        /// The name.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// The condition is not one of those that there are.
    #[error("`when` needs exactly one of `opcode`, `register`, `work` and `\"reset\":true`")]
    When,
    /// The condition contradicts itself.
    #[error("`{selector}` in `when` needs {needed}")]
    Selector {
        /// The name of the part that does not fit.
        selector: &'static str,
        /// What it fits.
        needed: &'static str,
    },
    /// The fault does not fit the condition.
    #[error("`{0}` in `then` does not fit what `when` matches")]
    Then(&'static str),
    /// Two parts of the fault contradict each other.
    #[error("`{0}` and `{1}` in `then` exclude each other")]
    Both(&'static str, &'static str),
    /// A name is empty or too long.
    #[error("the name in `hold` has {length} bytes, but it must have 1 to {most}")]
    Name {
        /// Its bytes.
        length: usize,
        /// Most bytes that a name has.
        most: usize,
    },
    /// A byte has two values.
    #[error("`corrupt` has the byte at offset {offset} twice")]
    Twice {
        /// Its position.
        offset: u8,
    },
    /// A byte is outside of the completion.
    #[error("a completion has {size} bytes and none at offset {offset}")]
    Offset {
        /// Its position.
        offset: u8,
        /// Bytes of the completion.
        size: u8,
    },
}

/// Finds what has a name.
pub(super) fn by_name<T: Copy>(
    kind: &'static str,
    all: &[T],
    name_of: fn(T) -> &'static str,
    name: &str,
) -> Result<T, RuleError> {
    let found = all.iter().copied().find(|value| name_of(*value) == name);
    found.ok_or_else(|| RuleError::Unknown {
        kind,
        name: name.to_owned(),
        known: all
            .iter()
            .map(|value| name_of(*value))
            .collect::<Vec<_>>()
            .join(", "),
    })
}
