// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Errors of rules, and lookup of the names in them.

/// A rule is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A name is unknown.
    #[error("there is no {kind} {name:?}, only {known}")]
    Unknown {
        /// Kind of value that was expected.
        kind: &'static str,
        /// The unknown name.
        name: String,
        /// Valid names, separated by commas.
        known: String,
    },
    /// The condition does not select exactly one kind of match.
    #[error("`when` needs exactly one of `opcode`, `register`, `work` and `\"reset\":true`")]
    When,
    /// The condition contradicts itself.
    #[error("`{selector}` in `when` needs {needed}")]
    Selector {
        /// Name of the field that does not fit.
        selector: &'static str,
        /// Condition that the field requires.
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
        /// Length of the name in bytes.
        length: usize,
        /// Limit on the length in bytes.
        most: usize,
    },
    /// A byte has two values.
    #[error("`corrupt` has the byte at offset {offset} twice")]
    Twice {
        /// Offset of the byte in the completion.
        offset: u8,
    },
    /// A byte is outside of the completion.
    #[error("offset {offset} is beyond the {size} bytes of a completion")]
    Offset {
        /// Offset of the byte in the completion.
        offset: u8,
        /// Size of the completion in bytes.
        size: u8,
    },
}

/// Finds the value with a name.
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
