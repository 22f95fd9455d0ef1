// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The filter of the trace.

use std::str::FromStr;

use efa_model::TraceKind;

/// All kinds of events, by name.
const KINDS: [(&str, TraceKind); 8] = [
    ("admin", TraceKind::Admin),
    ("registers", TraceKind::Registers),
    ("resets", TraceKind::Resets),
    ("events", TraceKind::Events),
    ("data", TraceKind::Data),
    ("work", TraceKind::Work),
    ("errors", TraceKind::Errors),
    ("operator", TraceKind::Operator),
];

/// Kinds of events that are traced for one or all devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// The device; all if absent.
    device: Option<usize>,
    kinds: Vec<TraceKind>,
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (device, kinds) = match text.split_once(':') {
            None => (None, text),
            Some((device, kinds)) => {
                let index = device.parse().map_err(|_| format!("`{device}` is not a device index"))?;
                (Some(index), kinds)
            }
        };
        let mut rule = Self { device, kinds: Vec::new() };
        for name in kinds.split(',') {
            let mut all = KINDS.iter().filter(|(kind, _)| *kind == name || name == "all");
            let first = all.next().ok_or_else(|| {
                let names: Vec<_> = KINDS.iter().map(|(name, _)| *name).collect();
                format!("no such kind: `{name}`, expected all, {}", names.join(", "))
            })?;
            rule.kinds.push(first.1);
            rule.kinds.extend(all.map(|(_, kind)| kind));
        }
        Ok(rule)
    }
}

/// Whether a kind of event of a device is traced. Without rules, all are but work requests and completions. Otherwise, a rule
/// for the device has to name the kind.
pub(super) fn accepts(rules: &[Rule], device: usize, kind: TraceKind) -> bool {
    let is_of = |rule: &&Rule| rule.device.is_none_or(|index| index == device);
    if rules.is_empty() {
        return kind != TraceKind::Work;
    }
    let mut of_device = rules.iter().filter(is_of);
    of_device.any(|rule| rule.kinds.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_add_up() {
        let rules = ["admin,errors", "1:work", "12:all"].map(|text| text.parse().unwrap());
        for (device, kind, expected) in [
            (0, TraceKind::Admin, true),
            (0, TraceKind::Errors, true),
            (0, TraceKind::Work, false),
            (0, TraceKind::Registers, false),
            (1, TraceKind::Work, true),
            (1, TraceKind::Admin, true),
            (1, TraceKind::Data, false),
            (12, TraceKind::Operator, true),
        ] {
            assert_eq!(accepts(&rules, device, kind), expected, "{device} {kind:?}");
        }
        assert!(accepts(&[], 0, TraceKind::Registers));
        assert!(!accepts(&[], 0, TraceKind::Work));
    }
}
