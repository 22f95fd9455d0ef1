// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The initializers `pin_init!` and `try_pin_init!`.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{
    parse::{Parse, ParseStream},
    punctuated::Punctuated,
    Block, Expr, Ident, Path, Token, Type,
};

/// One line of an initializer.
enum Line {
    Value(Ident, Expr),
    Init(Ident, Expr),
    Code(Block),
}

/// An initializer of a structure.
pub(crate) struct Initializer {
    this: Option<Ident>,
    path: Path,
    lines: Vec<Line>,
    error: Option<Type>,
}

impl Parse for Line {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        if input.peek(Token![_]) {
            input.parse::<Token![_]>()?;
            input.parse::<Token![:]>()?;
            return Ok(Self::Code(input.parse()?));
        }
        let name: Ident = input.parse()?;
        if input.peek(Token![<-]) {
            input.parse::<Token![<-]>()?;
            Ok(Self::Init(name, input.parse()?))
        } else if input.peek(Token![:]) {
            input.parse::<Token![:]>()?;
            Ok(Self::Value(name, input.parse()?))
        } else {
            let value = syn::parse_quote!(#name);
            Ok(Self::Value(name, value))
        }
    }
}

impl Parse for Initializer {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let this = if input.peek(Token![&]) {
            input.parse::<Token![&]>()?;
            let this = input.parse()?;
            input.parse::<Token![in]>()?;
            Some(this)
        } else {
            None
        };
        let path = input.parse()?;
        let body;
        syn::braced!(body in input);
        let lines = Punctuated::<Line, Token![,]>::parse_terminated(&body)?;
        let error = if input.peek(Token![?]) {
            input.parse::<Token![?]>()?;
            Some(input.parse()?)
        } else {
            None
        };
        Ok(Self {
            this,
            path,
            lines: lines.into_iter().collect(),
            error,
        })
    }
}

/// Expands an initializer, whose error is `default` unless it names another.
pub(crate) fn expand(initializer: Initializer, default: TokenStream) -> TokenStream {
    let Initializer {
        this,
        path,
        lines,
        error,
    } = initializer;
    let error = error.map_or(default, |error| quote!(#error));
    let this = this.map(|this| quote!(let #this = ::core::ptr::NonNull::new_unchecked(__slot);));

    let names: Vec<_> = lines
        .iter()
        .filter_map(|line| match line {
            Line::Value(name, _) | Line::Init(name, _) => Some(name),
            Line::Code(_) => None,
        })
        .collect();
    let guards: Vec<_> = (0..names.len())
        .map(|number| format_ident!("__guard_{}", number))
        .collect();
    let mut guard = guards.iter();
    let lines = lines.iter().map(|line| {
        let (name, code) = match line {
            Line::Value(name, value) => (
                name,
                quote!(::core::ptr::write(&raw mut (*__slot).#name, #value);),
            ),
            Line::Init(name, init) => (
                name,
                quote! {
                    match ::pin_init::PinInit::__pinned_init(#init, &raw mut (*__slot).#name) {
                        ::core::result::Result::Ok(()) => {}
                        ::core::result::Result::Err(error) => {
                            return ::core::result::Result::Err(::core::convert::From::from(error));
                        }
                    }
                },
            ),
            Line::Code(block) => return quote!(#block),
        };
        let guard = guard.next();
        quote! {
            #code
            let #guard = ::pin_init::__internal::Guard::new(&raw mut (*__slot).#name);
            #[allow(unused_variables)]
            let #name = &mut *(&raw mut (*__slot).#name);
        }
    });

    quote! {{
        #[allow(unused_unsafe, unreachable_code, clippy::all, clippy::diverging_sub_expression)]
        // SAFETY: All fields are initialized, or the initialized ones are dropped.
        unsafe {
            ::pin_init::__internal::from_closure::<_, #error, _>(
                move |__slot| -> ::core::result::Result<(), #error> {
                    let __slot = ::pin_init::__internal::tie(__slot, || #path { #(#names: loop {}),* });
                    #this
                    #(#lines)*
                    #(::core::mem::forget(#guards);)*
                    ::core::result::Result::Ok(())
                },
            )
        }
    }}
}
