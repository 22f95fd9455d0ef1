// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The limit of any emulated RDMA: rate of copies by one thread between two shared mappings, like those of guests' memory.
//!
//! Arguments: sizes in bytes. Prints a line for each: size, MiB/s.

use std::{
    env,
    ffi::{c_char, c_int, c_uint, c_void},
    hint::black_box,
    process::exit,
    ptr::{copy_nonoverlapping, null_mut},
    time::{Duration, Instant},
};

unsafe extern "C" {
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    fn ftruncate(fd: c_int, length: i64) -> c_int;
    fn mmap(
        at: *mut c_void,
        length: usize,
        prot: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64,
    ) -> *mut c_void;
}

const PROT_READ_WRITE: c_int = 3;
const MAP_SHARED: c_int = 1;
/// Duration of a measurement. The result for a size is the median of [`ROUNDS`] measurements.
const TIME: Duration = Duration::from_millis(40);
const ROUNDS: usize = 9;

/// Returns a shared mapping of a new memfd, with all pages allocated.
fn mapping(length: usize) -> *mut u8 {
    // SAFETY: the name is a C string; the mapping is new and never unmapped; its file has the same length.
    unsafe {
        let fd = memfd_create(c"bench".as_ptr(), 0);
        if fd < 0 || ftruncate(fd, length as i64) != 0 {
            fail("memfd_create");
        }
        let memory = mmap(null_mut(), length, PROT_READ_WRITE, MAP_SHARED, fd, 0);
        if memory as isize == -1 {
            fail("mmap");
        }
        memory.cast::<u8>().write_bytes(0x5a, length);
        memory.cast()
    }
}

fn fail(what: &str) -> ! {
    eprintln!("{what}: {}", std::io::Error::last_os_error());
    exit(1)
}

/// Returns the rate in bytes per second.
fn measure(from: *const u8, to: *mut u8, size: usize) -> f64 {
    // Enough copies between two reads of the clock to make its cost negligible.
    let batch = (1 << 20) / size + 1;
    let (start, mut copies) = (Instant::now(), 0);
    while start.elapsed() < TIME {
        for _ in 0..batch {
            // SAFETY: both mappings have at least this length, and they do not overlap.
            unsafe { copy_nonoverlapping(black_box(from), black_box(to), black_box(size)) };
        }
        copies += batch;
    }
    (copies * size) as f64 / start.elapsed().as_secs_f64()
}

fn main() {
    let sizes: Vec<usize> = env::args()
        .skip(1)
        .map(|size| size.parse().expect("a size is a number of bytes"))
        .collect();
    let longest = sizes.iter().copied().max().unwrap_or(0);
    let (from, to) = (mapping(longest), mapping(longest));
    for size in sizes {
        let mut rates: Vec<f64> = (0..ROUNDS).map(|_| measure(from, to, size)).collect();
        rates.sort_by(f64::total_cmp);
        println!("{size} {:.1}", rates[ROUNDS / 2] / (1 << 20) as f64);
    }
}
