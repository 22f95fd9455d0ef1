// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The macro `module!`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{
    parse::{Parse, ParseStream},
    Expr, Ident, Token, Type,
};

/// A parameter of a module, and its default.
struct Parameter {
    name: Ident,
    kind: Type,
    default: Expr,
}

/// The parts of a module's declaration that matter here.
pub(crate) struct Module {
    kind: Type,
    parameters: Vec<Parameter>,
}

impl Parse for Parameter {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let name = input.parse()?;
        input.parse::<Token![:]>()?;
        let kind = input.parse()?;
        let body;
        syn::braced!(body in input);
        let mut default = None;
        while !body.is_empty() {
            let field: Ident = body.parse()?;
            body.parse::<Token![:]>()?;
            let value: Expr = body.parse()?;
            body.parse::<Option<Token![,]>>()?;
            if field == "default" {
                default = Some(value);
            }
        }
        let default = default.ok_or_else(|| body.error("a parameter has a default"))?;
        Ok(Self {
            name,
            kind,
            default,
        })
    }
}

impl Parse for Module {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let (mut kind, mut parameters) = (None, Vec::new());
        while !input.is_empty() {
            if input.parse::<Option<Token![type]>>()?.is_some() {
                input.parse::<Token![:]>()?;
                kind = Some(input.parse()?);
            } else {
                let field: Ident = input.parse()?;
                input.parse::<Token![:]>()?;
                if field == "params" {
                    let body;
                    syn::braced!(body in input);
                    let all = body.parse_terminated(Parameter::parse, Token![,])?;
                    parameters.extend(all);
                } else {
                    input.parse::<Expr>()?;
                }
            }
            input.parse::<Option<Token![,]>>()?;
        }
        let kind = kind.ok_or_else(|| input.error("a module has a type"))?;
        Ok(Self { kind, parameters })
    }
}

/// Expands `module!`.
pub(crate) fn expand(module: Module) -> TokenStream {
    let Module { kind, parameters } = module;
    let parameters = parameters.iter().map(
        |Parameter {
             name,
             kind,
             default,
         }| {
            quote! {
                #[allow(non_camel_case_types)]
                pub(crate) struct #name;

                impl #name {
                    pub(crate) fn value(&self) -> #kind {
                        ::kernel::module::parameter(stringify!(#name))
                            .map_or(#default, |value| value as #kind)
                    }
                }
            }
        },
    );
    quote! {
        /// The C representation of this module.
        pub(crate) struct LocalModule;

        impl ::kernel::ModuleMetadata for LocalModule {
            const THIS_MODULE: ::kernel::ThisModule = ::kernel::ThisModule;
        }

        /// Loads this module.
        ///
        /// # Errors
        ///
        /// Errors of its initialization.
        pub fn load() -> ::kernel::error::Result<::kernel::module::Loaded> {
            ::kernel::module::load::<#kind>()
        }

        #[allow(dead_code)]
        pub(crate) mod module_parameters {
            #(#parameters)*
        }
    }
}
