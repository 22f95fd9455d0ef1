// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! All tables of the interface are those of the file `tables.txt`, and conversions follow them.

#[path = "tables/models.rs"]
mod models;

use std::{collections::BTreeSet, fmt::Write, fs, path::Path};

use efa_hw::{
    admin::{self, *},
    aenq::*,
    features::*,
    fields::{Described, Item, Kind, leaves},
    host_info::*,
    io::*,
    regs::*,
    stats::*,
    wire::Field,
};
use efa_hw::{
    admin::{ah::*, cq::*, eq::*, event_counter::*, mr::*, pd::*, qp::*, uar::*},
    eq::*,
};
use proptest::prelude::*;

/// Decodes bytes; returns the value as text, and encoded again.
type Through = fn(&[u8]) -> (String, Vec<u8>);

macro_rules! layouts {
    ($($name:ident)*) => {
        /// All structures: name, length, fields, and conversion.
        const LAYOUTS: &[(&str, usize, &[Item], Through)] = &[$((
            stringify!($name),
            size_of::<<$name as Field>::Bytes>(),
            $name::FIELDS,
            |bytes| {
                let value = $name::from_bytes(bytes.try_into().unwrap());
                (format!("{value:?}"), value.to_bytes().to_vec())
            },
        )),*];
    };
}

layouts! {
    CommandId AqFlags AqHeader AqHeaderV2 AcqFlags AcqHeader NoData CtrlBuffInfo CreateAh CreateAhResponse DestroyAh CqCaps1
    CqCaps2 CreateCq CreateCqResponseFlags CreateCqResponse DestroyCq CreateEqCaps CreateEq CreateEqResponse DestroyEq QpEvents
    CreateEventCounter CreateEventCounterResponse DestroyEventCounter AttachEventCounter ModifyEventCounter DetachEventCounter
    RegMrFlags RegMrPermissions InlinePages RegMr InterconnectValidity RegMrResponse DeregMr AllocMr AllocMrResponse AllocPd
    AllocPdResponse DeallocPd CreateQpFlags CreateQp CreateQpResponse ModifyQpMask ModifyQp QueryQp QueryQpResponse DestroyQp
    AllocUar AllocUarResponse DeallocUar AenqFlags AenqEntry EqeCommon Eqe GetFeature GetFeatureResponse SetFeature DeviceCaps
    DeviceAttr AenqConfig NetworkAttr QueueAttr1 QueueAttr2 EqEvents EventQueueAttr HwHints DriverVersion Bdf SpecVersion
    HostInfoFlags HostInfo Key TxCtrl1 TxCtrl2 TxCtrl3 TxMetaDesc TxBufDesc RemoteMemAddr FastMrRegFlags FastMrRegReq
    FastMrInvReq RxLkeyCtrl RxDesc CdescFlags Cdesc CqDb Version ControllerVersion Caps AqCaps EventRingCaps IntrMask DevCtl
    DevSts MmioRegRead EqDb ReadlessResponse GetStats GetStatsResponse BasicStats MessagesStats RdmaReadStats RdmaWriteStats
    NetworkStats
}

/// Writes the fields of a structure, with their offsets in bytes and bits, and their lengths in bits.
fn write(text: &mut String, fields: &[Item], bit: usize, prefix: &str) {
    for field in fields.iter().filter(|field| field.bits > 0) {
        let (name, bit) = (format!("{prefix}{}", field.name), bit + field.bit);
        match field.kind {
            Kind::Fields(inner) => write(text, inner, bit, &format!("{name}.")),
            _ if bit % 8 == 0 => writeln!(text, "{:>5} {:>4} {name}", bit / 8, field.bits).unwrap(),
            _ => writeln!(text, "{:>3}.{} {:>4} {name}", bit / 8, bit % 8, field.bits).unwrap(),
        }
    }
}

/// Writes the numbers and names of all values. Only they have a meaning.
macro_rules! codes {
    ($text:ident: $($name:ident($integer:ty))*) => {$(
        writeln!($text, stringify!($name)).unwrap();
        for value in $name::ALL {
            writeln!($text, "{:>5} {value}", <$integer>::from(*value)).unwrap();
        }
        for number in 0..=0xff {
            let named = $name::ALL.iter().find(|value| <$integer>::from(**value) == number);
            assert_eq!($name::try_from(number).ok().as_ref(), named);
        }
    )*};
}

/// Writes a command's number, its response, and whether the header has its `control`. Both are entries of their queues.
macro_rules! commands {
    ($text:ident: $($name:ident)*) => {$(
        let flags = AqFlags { ctrl_data: true, ..AqFlags::default() };
        let request = AqRequest { control: flags, ..$name::default().to_request() };
        let control = match $name::from_request(&request).to_request().control {
            control if control == flags => " control",
            _ => "",
        };
        let response = std::any::type_name::<<$name as Command>::Response>().rsplit(':').next().unwrap();
        writeln!($text, "{:>5} {} {response}{control}", u8::from($name::OPCODE), stringify!($name)).unwrap();
        let bytes = [0xff; admin::PAYLOAD_SIZE];
        let payload = $name::from_request(&AqRequest { payload: bytes, ..request }).to_request().payload;
        assert_eq!(payload, $name::decode(&bytes).encode());
        let entry = [0xff; 64];
        let response = <$name as Command>::Response::decode(&entry);
        assert_eq!(<$name as Command>::Response::from_entry(&entry), response);
        assert_eq!(response.to_entry(), response.encode());
    )*};
}

/// Writes the number of a part of a response, which begins after the header.
macro_rules! parts {
    ($text:ident: $number:ident of $($name:ident)*) => {$(
        writeln!($text, "{:>5} {}", u8::from($name::$number), stringify!($name)).unwrap();
        let response = $name::decode(&[0xff; $name::SIZE]).into_response();
        assert_eq!(response.to_entry()[8..][..$name::SIZE], $name::decode(&[0xff; $name::SIZE]).encode());
        assert_eq!($name::from_response(&response), $name::decode(&[0xff; $name::SIZE]));
    )*};
}

/// Returns all tables as text.
fn tables() -> String {
    let mut text = String::new();
    for (name, size, fields, _) in LAYOUTS {
        writeln!(text, "{name} {size}").unwrap();
        write(&mut text, fields, 0, "");
    }
    codes! { text:
        Opcode(u8) Status(u8) AttachType(u8) ModifyOp(u8) QpType(u8) QpState(u32) AenqGroup(u16) EventType(u8) FeatureId(u8)
        OsType(u32) OpType(u8) PblMode(u8) CompStatus(u8) QueueType(u8) Register(u16) ResetReason(u8) StatsType(u8) StatsScope(u8)
    }
    text += "commands\n";
    commands! { text:
        CreateQp ModifyQp QueryQp DestroyQp CreateAh DestroyAh RegMr DeregMr CreateCq DestroyCq GetFeature SetFeature GetStats
        AllocPd DeallocPd AllocUar DeallocUar CreateEq DestroyEq AllocMr CreateEventCounter DestroyEventCounter
        AttachEventCounter ModifyEventCounter DetachEventCounter
    }
    text += "features\n";
    parts! { text: ID of DeviceAttr AenqConfig NetworkAttr QueueAttr1 HwHints EventQueueAttr QueueAttr2 }
    text += "statistics\n";
    parts! { text: TYPE of BasicStats MessagesStats RdmaReadStats RdmaWriteStats NetworkStats }
    text
}

/// Returns the lines of the file.
fn file() -> impl Iterator<Item = &'static str> {
    let lines = include_str!("tables.txt").lines();
    lines.filter(|line| !line.starts_with('#'))
}

#[test]
fn tables_are_those_of_the_file() {
    let found = tables();
    for (found, expected) in found.lines().zip(file()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.lines().count(), file().count());
}

/// Returns the names in a file and in the files of the folder with its name.
fn names(path: &Path) -> BTreeSet<String> {
    if path.is_dir() {
        return fs::read_dir(path).unwrap().flat_map(|entry| names(&entry.unwrap().path())).collect();
    }
    let text = fs::read_to_string(path).unwrap();
    let kinds = [("    pub struct ", ['[', '(']), ("    pub enum ", [':', ':'])];
    let declared = |line: &str| {
        kinds.iter().find_map(|(start, ends)| {
            let (name, _) = line.strip_prefix(start)?.split_once(ends)?;
            Some(name.to_owned())
        })
    };
    text.lines().filter_map(declared).collect()
}

#[test]
fn the_file_has_all_tables() {
    let declared = names(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../efa_rs/hw"));
    let listed = file().filter(|line| line.starts_with(char::is_uppercase));
    let listed = listed.map(|line| line.split(' ').next().unwrap().to_owned());
    assert_eq!(listed.collect::<BTreeSet<_>>(), declared);
}

/// Each field is decoded from its bytes alone, as a little-endian integer, and encoded as the same.
#[test]
fn fields_are_decoded_and_encoded_at_their_offsets() {
    for (name, size, fields, through) in LAYOUTS {
        leaves(fields, &mut |field| {
            let mut bytes = vec![0; *size];
            let expected = match field.kind {
                _ if field.bits == 0 => return,
                Kind::Bytes | Kind::Gid => {
                    let own: Vec<u8> = (1..=field.bits / 8).map(|number| number as u8).collect();
                    bytes[field.bit / 8..][..own.len()].copy_from_slice(&own);
                    format!("{own:?}")
                }
                Kind::Flag => {
                    field.put(&mut bytes, 1);
                    "true".to_owned()
                }
                _ => {
                    let value = 0x8877_6655_4433_2211 & (u64::MAX >> (64 - field.bits));
                    let all = (u128::from(value) << (field.bit % 8)).to_le_bytes();
                    let own = (field.bit % 8 + field.bits).div_ceil(8);
                    bytes[field.bit / 8..][..own].copy_from_slice(&all[..own]);
                    assert_eq!(field.get(&bytes), value, "{name}.{}", field.name);
                    value.to_string()
                }
            };
            let (text, encoded) = through(&bytes);
            let expected = format!(" {}: {expected}", field.name);
            assert!(text.contains(&expected), "{name} is {text}, without {expected}");
            assert_eq!(encoded, bytes, "{name}.{}", field.name);
        });
    }
}

/// The dissector has the values and fields that captures contain.
#[test]
fn the_dissector_has_the_same_tables() {
    let of_layout = |name: &'static str| {
        let (.., items, _) = LAYOUTS.iter().find(|layout| layout.0 == name).unwrap();
        let mut fields = Vec::new();
        leaves(items, &mut |field| {
            let (name, byte, shift) = (field.name, field.bit / 8, field.bit % 8);
            let length = (shift + field.bits).div_ceil(8);
            fields.push(match field.bits % 8 {
                0 => format!("{name} = {{ {byte}, {length} }}"),
                _ => format!("{name} = {{ {byte}, {length}, {:#x}, {shift} }}", ((1 << field.bits) - 1) << shift),
            });
        });
        (name, fields)
    };
    let of_codes = |(name, kind)| {
        let Kind::Code(values) = kind else {
            panic!("{kind:?}");
        };
        let follows = |number: u32| values.iter().any(|(other, _)| *other + 1 == number);
        let value = |(number, text): &(u32, &str)| match follows(*number) {
            true => format!("\"{text}\""),
            false => format!("[{number}] = \"{text}\""),
        };
        (name, values.iter().map(value).collect())
    };
    let layouts = "TxMetaDesc TxBufDesc RemoteMemAddr FastMrInvReq RxDesc Cdesc".split(' ');
    let codes = [("OpType", OpType::KIND), ("CompStatus", CompStatus::KIND)].map(of_codes);
    let without_spaces = |text: &str| text.replace([' ', '\n'], "").replace(",}", "}");
    let dissector = without_spaces(include_str!("../../wireshark/efa.lua"));
    for (name, entries) in layouts.map(of_layout).chain(codes) {
        let table = format!("local {name} = {{ {} }}", entries.join(", "));
        assert!(dissector.contains(&without_spaces(&table)), "efa.lua needs {table}");
    }
}

proptest! {
    /// Any bytes decode. Exactly the bits outside of fields do not survive.
    #[test]
    fn reserved_bits_are_ignored(bytes in proptest::collection::vec(any::<u8>(), 180)) {
        for (name, size, fields, through) in LAYOUTS {
            let mut kept = vec![0; *size];
            leaves(fields, &mut |field| match field.kind {
                Kind::Bytes | Kind::Gid => {
                    let own = field.bit / 8..(field.bit + field.bits) / 8;
                    kept[own.clone()].copy_from_slice(&bytes[own]);
                }
                Kind::Flag => field.put(&mut kept, (field.get(&bytes) != 0).into()),
                _ => field.put(&mut kept, field.get(&bytes)),
            });
            let (text, encoded) = through(&bytes[..*size]);
            prop_assert_eq!(&encoded, &kept, "{}", name);
            prop_assert_eq!(through(&encoded), (text, kept));
        }
    }

    /// A value that is too large for its field does not reach its neighbours.
    #[test]
    fn values_too_large(reset_timeout: u8, admin_cmd_timeout: u8) {
        let caps = Caps { reset_timeout, admin_cmd_timeout, ..Default::default() };
        let raw = (u32::from(reset_timeout & 0x1f) << 1) | (u32::from(admin_cmd_timeout & 0xf) << 16);
        prop_assert_eq!(caps.into_raw(), raw);
    }
}
