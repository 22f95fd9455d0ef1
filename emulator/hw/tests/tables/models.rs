// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Decoders are total, and encoders invert them: for all values of small fields, words and codes. With `EFA_LARGE`, fields of up to
//! 16 bits are small, and else of up to 8 bits.

use efa_hw::checksum;

use super::*;

/// Contents of the bits that a property does not vary.
const BACKGROUNDS: [u8; 2] = [0, 0xff];

fn most_bits() -> usize {
    match std::env::var_os("EFA_LARGE") {
        Some(_) => 16,
        None => 8,
    }
}

/// Shows the size of a search.
fn explored(property: &str, cases: u64) {
    println!("{property}: {cases} cases");
    assert!(cases > 100, "{property}: {cases} cases");
}

/// A structure, and the bits of it that belong to a field.
struct Layout {
    name: &'static str,
    size: usize,
    through: Through,
    fields: Vec<Item>,
    defined: Vec<u8>,
}

fn all() -> impl Iterator<Item = Layout> {
    LAYOUTS.iter().map(|(name, size, items, through)| {
        let (mut fields, mut defined) = (Vec::new(), vec![0; *size]);
        leaves(items, &mut |field| {
            if field.bits > 0 {
                for bit in field.bit..field.bit + field.bits {
                    defined[bit / 8] |= 1 << (bit % 8);
                }
                fields.push(field);
            }
        });
        Layout { name, size: *size, through: *through, fields, defined }
    })
}

impl Layout {
    /// Returns bytes in canonical form: reserved bits are 0, and a flag that has a byte is 0 or 1.
    fn canonical(&self, bytes: &[u8]) -> Vec<u8> {
        let mut kept: Vec<u8> = bytes.iter().zip(&self.defined).map(|(byte, mask)| byte & mask).collect();
        for field in self.fields.iter().filter(|field| matches!(field.kind, Kind::Flag)) {
            let is_set = field.get(bytes) != 0;
            field.put(&mut kept, is_set.into());
        }
        kept
    }

    /// Checks that decoding and encoding keep exactly what is canonical.
    fn check(&self, bytes: &[u8]) {
        let (_, encoded) = (self.through)(bytes);
        assert_eq!(encoded, self.canonical(bytes), "{} of {bytes:?}", self.name);
    }
}

#[test]
fn each_value_of_a_field_survives_and_changes_no_other_field() {
    let mut cases = 0;
    for layout in all() {
        for field in layout.fields.iter().filter(|field| field.bits <= most_bits()) {
            for (background, value) in
                BACKGROUNDS.into_iter().flat_map(|one| (0..1_u64 << field.bits).map(move |value| (one, value)))
            {
                let mut bytes = vec![background; layout.size];
                field.put(&mut bytes, value);
                layout.check(&bytes);
                cases += 1;
            }
        }
    }
    explored("values of fields", cases);
}

#[test]
fn each_bit_outside_of_fields_has_no_effect() {
    let mut cases = 0;
    for layout in all() {
        let (text, encoded) = (layout.through)(&vec![0; layout.size]);
        for bit in (0..8 * layout.size).filter(|bit| (layout.defined[bit / 8] >> (bit % 8)) & 1 == 0) {
            let mut bytes = vec![0; layout.size];
            bytes[bit / 8] = 1 << (bit % 8);
            assert_eq!((layout.through)(&bytes), (text.clone(), encoded.clone()), "{}, bit {bit}", layout.name);
            cases += 1;
        }
    }
    explored("reserved bits", cases);
}

#[test]
fn each_bit_of_a_field_has_an_effect() {
    let mut cases = 0;
    for layout in all() {
        for bit in (0..8 * layout.size).filter(|bit| (layout.defined[bit / 8] >> (bit % 8)) & 1 != 0) {
            let mut bytes = vec![0; layout.size];
            bytes[bit / 8] = 1 << (bit % 8);
            let zero = (layout.through)(&vec![0; layout.size]);
            assert_ne!((layout.through)(&bytes), zero, "{}, bit {bit}", layout.name);
            cases += 1;
        }
    }
    explored("defined bits", cases);
}

#[test]
fn each_value_of_a_byte_decodes_in_each_structure() {
    let mut cases = 0;
    let backgrounds = &BACKGROUNDS[..most_bits() / 8];
    for layout in all() {
        let places = (0..layout.size).flat_map(|at| backgrounds.iter().map(move |one| (at, *one)));
        for (at, background) in places {
            let mut bytes = vec![background; layout.size];
            for value in 0..=u8::MAX {
                bytes[at] = value;
                layout.check(&bytes);
                cases += 1;
            }
        }
    }
    explored("bytes", cases);
}

/// A word of two bytes has all its values, one after the other.
#[test]
fn each_value_of_a_small_word_decodes() {
    let mut cases = 0;
    for layout in all().filter(|layout| layout.size <= 2) {
        for value in 0..1_u32 << (8 * layout.size) {
            layout.check(&value.to_le_bytes()[..layout.size]);
            cases += 1;
        }
    }
    explored("words", cases);
}

#[test]
fn each_pair_of_bits_of_a_large_word_decodes() {
    let mut cases = 0;
    for layout in all().filter(|layout| layout.size == 4) {
        for (one, other) in (0..32).flat_map(|one| (0..32).map(move |other| (one, other))) {
            let pair = (1_u32 << one) | (1 << other);
            for word in [pair, !pair] {
                layout.check(&word.to_le_bytes());
                cases += 1;
            }
        }
    }
    explored("pairs of bits", cases);
}

/// Codes of the interface: all numbers of 16 bits, and all larger ones of one bit.
#[test]
fn each_number_is_one_code_or_none() {
    let mut cases = 0;
    macro_rules! codes {
        ($($name:ident($integer:ty))*) => {$(
            let large = (16..32).map(|bit| 1_u32 << bit);
            for number in (0..=0xffff).chain(large).filter_map(|number| <$integer>::try_from(number).ok()) {
                let named: Vec<_> = $name::ALL.iter().filter(|code| <$integer>::from(**code) == number).collect();
                assert_eq!($name::try_from(number).ok().as_ref(), named.first().copied());
                assert!(named.len() <= 1);
                cases += 1;
            }
        )*};
    }
    codes! {
        Opcode(u8) Status(u8) AttachType(u8) ModifyOp(u8) QpType(u8) QpState(u32) AenqGroup(u16) EventType(u8) FeatureId(u8)
        OsType(u32) OpType(u8) PblMode(u8) CompStatus(u8) QueueType(u8) Register(u16) ResetReason(u8) StatsType(u8) StatsScope(u8)
    }
    explored("numbers", cases);
}

/// An entry of the admin queue says which command it is for, in which pass over the ring.
#[test]
fn each_id_and_phase_of_a_command_is_found_in_its_entry() {
    let mut cases = 0;
    let request = AllocPd {}.to_request();
    for protocol in [Protocol::V1, Protocol::V2] {
        for (id, phase) in (0..1_u16 << admin::COMMAND_ID_BITS).flat_map(|id| [(id, false), (id, true)]) {
            let entry = AqEntry::new(protocol, &request, id, phase);
            let header = entry.header();
            assert_eq!((header.command_id.id, header.flags.phase), (id, phase));
            assert_eq!(entry.request(), request);
            let own = request.encode_v1(id, phase);
            assert!(protocol != Protocol::V1 || entry.bytes() == own);
            cases += 1;
        }
    }
    explored("ids", cases);
}

/// Two wrong bits, and a burst of up to 16 wrong bits, are found in each place of an entry.
#[test]
fn each_error_of_few_bits_changes_the_checksum() {
    let mut cases = 0;
    let most = 8 * most_bits();
    let entry: Vec<u8> = (0..64).map(|index: u8| index.wrapping_mul(37)).collect();
    let checksum = checksum::of_entry(&entry);
    let is_own = |bit: usize| bit / 8 / 2 == checksum::OFFSET / 2;
    let mut differs = |bits: &mut dyn Iterator<Item = usize>| {
        let (mut wrong, mut any) = (entry.clone(), false);
        for bit in bits {
            wrong[bit / 8] ^= 1 << (bit % 8);
            any |= !is_own(bit);
        }
        assert_eq!(checksum::of_entry(&wrong) != checksum, any, "{wrong:?}");
        cases += 1;
    };
    for one in 0..8 * entry.len() {
        for other in (one + 1..8 * entry.len()).take(most) {
            differs(&mut [one, other].into_iter());
        }
        for length in 1..=16.min(8 * entry.len() - one) {
            differs(&mut (one..one + length));
        }
    }
    explored("errors", cases);
}
