// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Traits whose implementations may omit functions.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Attribute, Ident, ImplItem, Item, TraitItem};

/// Expands `#[vtable]`.
pub(crate) fn expand(item: Item) -> TokenStream {
    match item {
        Item::Trait(mut item) => {
            let names: Vec<_> = item
                .items
                .iter()
                .filter_map(|item| match item {
                    TraitItem::Fn(function) => Some(has(&function.sig.ident, &function.attrs)),
                    _ => None,
                })
                .collect();
            for (name, cfgs) in names {
                item.items.push(syn::parse_quote! {
                    #(#cfgs)*
                    /// Whether an implementation has this function.
                    const #name: bool = false;
                });
            }
            item.items.push(syn::parse_quote! {
                /// The module that has the implementation.
                type OwnerModule: ::kernel::ModuleMetadata;
            });
            quote!(#item)
        }
        Item::Impl(mut item) => {
            let names: Vec<_> = item
                .items
                .iter()
                .filter_map(|item| match item {
                    ImplItem::Fn(function) => Some(has(&function.sig.ident, &function.attrs)),
                    _ => None,
                })
                .collect();
            for (name, cfgs) in names {
                item.items
                    .push(syn::parse_quote!(#(#cfgs)* const #name: bool = true;));
            }
            item.items.push(syn::parse_quote!(
                type OwnerModule = crate::LocalModule;
            ));
            quote!(#item)
        }
        other => syn::Error::new_spanned(other, "a trait or its implementation is expected")
            .to_compile_error(),
    }
}

/// Returns the name of the constant for a function, and the function's `cfg`s, which the constant has as well.
fn has(function: &Ident, attrs: &[Attribute]) -> (Ident, Vec<Attribute>) {
    let name = format_ident!("HAS_{}", function.to_string().to_uppercase());
    let is_cfg = |attr: &&Attribute| attr.path().is_ident("cfg");
    (name, attrs.iter().filter(is_cfg).cloned().collect())
}
