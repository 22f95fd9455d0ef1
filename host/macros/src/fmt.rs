// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The macro `fmt!`.

use std::collections::BTreeSet;

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{
    parse::{Parse, ParseStream},
    Expr, Ident, LitStr, Token,
};

/// A format string and its arguments.
pub(crate) struct Format {
    text: LitStr,
    arguments: Vec<(Option<Ident>, Expr)>,
}

impl Parse for Format {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let text = input.parse()?;
        let mut arguments = Vec::new();
        while input.parse::<Option<Token![,]>>()?.is_some() && !input.is_empty() {
            let is_named = input.peek(Ident) && input.peek2(Token![=]) && !input.peek2(Token![==]);
            let name = if is_named {
                let name = input.parse()?;
                input.parse::<Token![=]>()?;
                Some(name)
            } else {
                None
            };
            arguments.push((name, input.parse()?));
        }
        Ok(Self { text, arguments })
    }
}

/// Returns the identifiers that a format string names.
fn names(text: &str) -> BTreeSet<String> {
    let text = text.replace("{{", "");
    let pieces = text.split('{').skip(1);
    let names = pieces.map(|piece| piece.split(['}', ':']).next().unwrap_or_default());
    let is_name =
        |name: &&str| name.starts_with(|first: char| first.is_alphabetic() || first == '_');
    names.filter(is_name).map(str::to_owned).collect()
}

/// Expands `fmt!`: each argument is formatted by the kernel's traits.
pub(crate) fn expand(format: Format) -> TokenStream {
    let Format { text, arguments } = format;
    let mut captured = names(&text.value());
    let arguments: Vec<_> = arguments
        .iter()
        .map(|(name, value)| match name {
            Some(name) => {
                captured.remove(&name.to_string());
                quote!(#name = ::kernel::fmt::Adapter(&(#value)))
            }
            None => quote!(::kernel::fmt::Adapter(&(#value))),
        })
        .collect();
    let captured = captured.iter().map(|name| {
        let name = format_ident!("{name}", span = text.span());
        quote!(#name = ::kernel::fmt::Adapter(&#name))
    });
    quote!(::core::format_args!(#text #(, #arguments)* #(, #captured)*))
}
