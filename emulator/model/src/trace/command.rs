// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Arguments and results of admin commands.

use std::fmt;

use efa_hw::{
    admin::{
        AcqEntry, AqFlags, AqRequest, Command, CtrlBuffInfo, Opcode,
        mr::{InlinePages, PageList, RegMr},
    },
    features::{AenqConfig, Feature, GetFeature, GetFeatureResponse, SetFeature},
};

use super::fields::Fields;
use crate::layouts::{attributes_of, fields_of};

/// Writes the arguments of a command, without those that are zero.
pub(super) fn arguments(out: &mut Fields<'_, '_>, opcode: Opcode, request: &AqRequest) -> fmt::Result {
    out.write(fields_of(opcode)[0], &request.payload)?;
    out.of::<AqFlags>(&[request.control.into_raw()])?;
    match opcode {
        Opcode::RegMr => match RegMr::from_request(request).page_list() {
            Some(PageList::Inline(pages)) => out.of::<InlinePages>(&InlinePages::from(pages).encode()),
            Some(PageList::Direct(list) | PageList::Indirect(list)) => out.of::<CtrlBuffInfo>(&list.encode()),
            None => Ok(()),
        },
        Opcode::SetFeature => {
            let command = SetFeature::from_request(request);
            if command.feature_id == u8::from(AenqConfig::ID) {
                out.of::<AenqConfig>(&command.data)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Writes the results of a successful command, if any.
pub(super) fn results(out: &mut Fields<'_, '_>, opcode: Opcode, request: &AqRequest, entry: &AcqEntry) -> fmt::Result {
    out.write(fields_of(opcode)[1], entry)?;
    if opcode == Opcode::GetFeature {
        let feature = GetFeature::from_request(request).feature_id;
        out.write(attributes_of(feature), &GetFeatureResponse::decode(entry).data)?;
    }
    Ok(())
}
