// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The procedural macros of the kernel crate and of `pin_init`, as far as drivers use them.
//!
//! They make none of the checks of the real macros: the kernel's build does.

use proc_macro::TokenStream;
use quote::quote;
use syn::{parse_macro_input, Item, ItemStruct};

use initializer::Initializer;

mod fmt;
mod initializer;
mod module;
mod vtable;

/// Defines the function `load` and `module_parameters` from the declaration of a module.
#[proc_macro]
pub fn module(input: TokenStream) -> TokenStream {
    module::expand(parse_macro_input!(input as module::Module)).into()
}

/// Creates the arguments of a message, of types that implement `kernel::fmt::Display`.
#[proc_macro]
pub fn fmt(input: TokenStream) -> TokenStream {
    fmt::expand(parse_macro_input!(input as fmt::Format)).into()
}

/// Adds a constant `HAS_*` for each function of a trait: whether an implementation has the function.
#[proc_macro_attribute]
pub fn vtable(_: TokenStream, input: TokenStream) -> TokenStream {
    vtable::expand(parse_macro_input!(input as Item)).into()
}

/// Removes `#[pin]` from fields. With the argument `PinnedDrop`, the drop calls that trait.
#[proc_macro_attribute]
pub fn pin_data(arguments: TokenStream, input: TokenStream) -> TokenStream {
    let mut item = parse_macro_input!(input as ItemStruct);
    for field in &mut item.fields {
        field
            .attrs
            .retain(|attribute| !attribute.path().is_ident("pin"));
    }
    let drops = arguments.to_string().contains("PinnedDrop").then(|| {
        let name = &item.ident;
        let (generics, types, bounds) = item.generics.split_for_impl();
        quote! {
            impl #generics ::core::ops::Drop for #name #types #bounds {
                fn drop(&mut self) {
                    // SAFETY: A pinned value is not moved before its drop.
                    ::pin_init::PinnedDrop::drop(unsafe { ::core::pin::Pin::new_unchecked(self) })
                }
            }
        }
    });
    quote!(#item #drops).into()
}

/// Marks an implementation of `PinnedDrop`, which [`pin_data`] calls.
#[proc_macro_attribute]
pub fn pinned_drop(_: TokenStream, input: TokenStream) -> TokenStream {
    input
}

/// Creates an initializer that cannot fail.
#[proc_macro]
pub fn pin_init(input: TokenStream) -> TokenStream {
    let initializer = parse_macro_input!(input as Initializer);
    initializer::expand(initializer, quote!(::core::convert::Infallible)).into()
}

/// Creates an initializer that can fail, with the kernel's error unless it names another.
#[proc_macro]
pub fn try_pin_init(input: TokenStream) -> TokenStream {
    let initializer = parse_macro_input!(input as Initializer);
    initializer::expand(initializer, quote!(::kernel::error::Error)).into()
}
