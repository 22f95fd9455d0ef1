// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Describes the EFAs of this machine as an instance, as far as programs without privileges see them.
//!
//! Names and numbers are those of `<rdma/ib_user_verbs.h>` and `<rdma/efa-abi.h>`. All answers are in the host's byte order.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use efa_hw::pci;
use efa_model::{Config, Overrides};
use rustix::param::page_size;
use serde_json::{Map, Value, json};
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

use crate::instance::Instance;

const CLASS: &str = "/sys/class/infiniband_verbs";

const GET_CONTEXT: u32 = 0;
const QUERY_PORT: u32 = 2;
const EX_QUERY_DEVICE: u32 = 0x8000_0001;

/// Size of the core's part of the answer to `EX_QUERY_DEVICE`, with room for later fields. EFA's part follows.
const CORE: usize = 512;

/// Features of `GET_CONTEXT` that a library has to know: limited batches of a send queue, and its minimal depth.
const FEATURES: u64 = 3;

/// An answer of the kernel.
struct Answer(Vec<u8>);

impl Answer {
    /// Sends a command, of which the second word is the address for the answer.
    fn to<const N: usize>(device: &File, mut words: [u64; N], size: usize) -> io::Result<Self> {
        // The compiler assumes nothing of this memory, which the kernel writes to.
        let memory = MmapRegion::<()>::new(size).map_err(io::Error::other)?;
        words[1] = memory.as_ptr() as u64;
        let mut device = device;
        device.write_all(&words.map(u64::to_ne_bytes).concat())?;
        let mut bytes = vec![0; size];
        let read = memory.as_volatile_slice().read_slice(&mut bytes, 0);
        read.map(|()| Self(bytes)).map_err(io::Error::other)
    }

    /// Returns the number of `size` bytes at `at`, or nothing if it is larger than attributes are.
    fn at<T: TryFrom<u64>>(&self, at: usize, size: usize) -> Option<T> {
        let bytes = self.0[at..at + size].iter().rev();
        let number = bytes.fold(0, |number: u64, byte| (number << 8) | u64::from(*byte));
        number.try_into().ok()
    }
}

/// A kind of devices.
#[derive(PartialEq)]
struct Kind {
    /// PCI device id in hexadecimal, which is also the name of the profile.
    id: String,
    /// Speed of the link in Gbit/s, or of the next slower one of InfiniBand.
    gbps: u16,
    /// Attributes that programs see.
    seen: Overrides,
}

/// Returns a device's name and kind, if it is an EFA. `folder` is that of its device file in sysfs.
fn device(folder: &Path) -> Result<Option<(String, Kind)>, String> {
    let name = text(&folder.join("ibdev"))?;
    let id = text(&folder.join("device/device"))?.replace("0x", "");
    if text(&folder.join("device/vendor"))? != format!("{:#x}", pci::VENDOR) {
        return Ok(None);
    }
    let port = PathBuf::from(format!("/sys/class/infiniband/{name}/ports/1"));
    let rate = text(&port.join("rate"))?;
    let gbps = rate.split(' ').next().and_then(|gbps| gbps.parse().ok());
    let path = Path::new("/dev/infiniband").join(folder.file_name().unwrap_or_default());
    let kind = File::options().read(true).write(true).open(&path).and_then(|file| {
        Ok(Kind { id, gbps: gbps.unwrap_or_default(), seen: seen(&file, port.join("hw_counters").exists())? })
    });
    let kind = kind.map_err(|error| format!("cannot ask {}: {error}", path.display()))?;
    Ok(Some((name, kind)))
}

/// Asks the driver for what programs see.
fn seen(file: &File, network_stats: bool) -> io::Result<Overrides> {
    // A number of the command, and sizes of command and answer in words of 4 bytes, or of 8 bytes.
    let head = |command: u32, size: u64, answer: u64| u64::from(command) | (size << 32) | (answer << 48);
    // It also opens a descriptor for events, which ends with this program.
    let context = Answer::to(file, [head(GET_CONTEXT, 6, 8), 0, FEATURES], 32)?;
    let port = Answer::to(file, [head(QUERY_PORT, 6, 10), 0, 1], 40)?;
    let words = [head(EX_QUERY_DEVICE, 1, CORE as u64 / 8), 0, 3 << 16, 0];
    let device = Answer::to(file, words, CORE + 24)?;

    let caps = device.at(CORE + 20, 4).unwrap_or(0_u32);
    let cap = |bit: u32| Some(caps & (1 << bit) != 0);
    // A driver that is older than the capability does not report it.
    let later = |bit| cap(bit).filter(|cap| *cap);
    let region: Option<u64> = device.at(24, 8);
    Ok(Overrides {
        mtu: port.at(4, 4),
        page_size_cap: device.at(32, 8),
        rdma_read: cap(0),
        rnr_retry: cap(1),
        data_polling_128: cap(4),
        rdma_write: cap(5),
        unsolicited_write_recv: cap(6),
        event_counters: later(8),
        sq_64_bit_req_id: later(9),
        max_rdma_size: device.at(CORE + 16, 4),
        network_stats: Some(network_stats),
        max_pd: device.at(84, 4),
        max_ah: device.at(144, 4),
        max_mr: device.at(80, 4),
        max_mr_pages: region.and_then(|size| (size / page_size() as u64).try_into().ok()),
        max_cq: device.at(72, 4),
        max_cq_depth: device.at(76, 4),
        sub_cqs_per_cq: context.at(16, 2),
        max_qp: device.at(52, 4),
        min_sq_depth: context.at(26, 2),
        max_sq_depth: device.at(CORE + 4, 4),
        max_rq_depth: device.at(CORE + 8, 4),
        max_llq_size: context.at(20, 4),
        inline_buf_size: context.at(18, 2),
        inline_buf_size_ex: context.at(28, 2).filter(|size| *size > 0),
        max_wr_send_sges: device.at(CORE + 12, 2),
        max_wr_recv_sges: device.at(CORE + 14, 2),
        max_wr_rdma_sges: device.at(68, 4),
        max_tx_batch: context.at(24, 2),
        max_eq: if cap(2) == Some(true) { context.at(4, 4) } else { Some(0) },
        ..Overrides::default()
    })
}

/// Describes `count` devices of a kind as the instance `name`, with the values of this program in comments where they differ.
fn describe(name: &str, count: usize, mut kind: Kind) -> Result<String, String> {
    let known = Instance::known().remove(name);
    let real = known.as_ref().map(|known| known.link_gbps);
    let real = real.filter(|gbps| (kind.gbps..kind.gbps.saturating_mul(2)).contains(gbps));
    let rdma = match (kind.seen.rdma_read, kind.seen.rdma_write) {
        (Some(true), Some(true)) => "read-write",
        (Some(true), _) => "read",
        _ => "none",
    };
    let own = json!({"devices": count, "profile": kind.id, "link_gbps": real.unwrap_or(kind.gbps), "rdma": rdma});
    let mut text = format!("[instance.{name:?}]\n");
    let table = json!(known);
    for (key, value) in names(own) {
        let comment = Some(&table[&key]).filter(|other| !other.is_null() && **other != value);
        let comment = comment.map_or(String::new(), |other| format!(" # {other}"));
        let _ = writeln!(text, "{key} = {value}{comment}");
    }

    // What a file with no more than this would give.
    let instance = Instance::read(&text).map_err(|(_, error)| error)?.remove(name);
    let instance = instance.ok_or("the description has no instance")?;
    let table = Config { overrides: instance.overrides(), ..Config::new(instance.profile, 0) };
    let table = table.all();
    // The driver reports no more event queues than there are CPUs.
    kind.seen.max_eq = kind.seen.max_eq.filter(|seen| (*seen == 0) != (table.max_eq == Some(0)));
    let (table, mut seen) = (json!(table), names(json!(kind.seen)));
    seen.retain(|key, value| table[key.as_str()] != *value);
    if !seen.is_empty() {
        let _ = writeln!(text, "[instance.{name:?}.set]");
    }
    for (key, value) in seen {
        let _ = writeln!(text, "{key} = {value} # {}", table[&key]);
    }
    Ok(text)
}

fn names(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(names) => names,
        _ => Map::new(),
    }
}

fn text(path: &Path) -> Result<String, String> {
    let text = fs::read_to_string(path);
    let text = text.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    Ok(text.trim().to_owned())
}

/// Describes the EFAs of this machine, as a file for `--instance`.
///
/// # Errors
///
/// There are none, or one can't be read.
pub(crate) fn probe() -> Result<String, String> {
    let files = fs::read_dir(CLASS).map(|files| files.flatten().map(|file| file.path()));
    let mut folders: Vec<_> = files.into_iter().flatten().collect();
    folders.retain(|folder| folder.join("ibdev").exists());
    folders.sort();
    let mut kinds: Vec<(Kind, Vec<String>)> = Vec::new();
    for folder in folders {
        let Some((name, kind)) = device(&folder)? else {
            continue;
        };
        match kinds.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, names)) => names.push(name),
            None => kinds.push((kind, vec![name])),
        }
    }
    // On EC2, the type of the instance.
    let product = text(Path::new("/sys/class/dmi/id/product_name")).unwrap_or_default();
    let is_type = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
    let product = match product.is_empty() || !product.bytes().all(is_type) {
        true => "probed".to_owned(),
        false => product,
    };
    let mut all = String::new();
    for (index, (kind, devices)) in kinds.into_iter().enumerate() {
        let name = match index {
            0 => product.clone(),
            _ => format!("{product}-{}", index + 1),
        };
        let described = describe(&name, devices.len(), kind)?;
        let _ = write!(all, "# {}\n{described}\n", devices.join(" "));
    }
    match all.is_empty() {
        true => Err("no EFA here has a driver: run this on an instance with EFA, with the driver loaded".into()),
        false => Ok(all),
    }
}
