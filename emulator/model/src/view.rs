// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Views: structs for observers, with the expression that reads each field.

/// Declares a view of a value.
macro_rules! view {
    (
        $(#[$meta:meta])*
        $name:ident from $from:tt: $of:ty { $($(#[$doc:meta])* $field:ident: $kind:ty = $value:expr,)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
        pub struct $name {
            $($(#[$doc])* pub $field: $kind,)*
        }

        impl From<$of> for $name {
            fn from($from: $of) -> Self {
                Self { $($field: $value,)* }
            }
        }
    };
}

pub(crate) use view;
