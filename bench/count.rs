// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A plugin of QEMU's TCG that counts kernel instructions in the parts that a program in the guest marks.
//!
//! The program, or a module that works for it, executes `nopl DISP(%rax)`. The upper half of the
//! displacement is [`MAGIC`]. The lower half is the kind of the mark: start or end of a part, or end of
//! a sample. A sample consists of all parts since the previous sample. Within a part, the plugin counts
//! these instructions in the kernel's half of the address space:
//!  - those of the program's own task,
//!  - those of device interrupts while another task runs, as the program then waits for a device.
//!
//! Neither the idle task is counted nor other tasks that run while the program sleeps. The program marks
//! the addresses of the kernel's task switch and of its interrupt handling before the first part.
//!
//! Samples are grouped by the label in the lower bits of their mark, and by the number of switches away
//! from the program's task. Samples with different numbers of sleeps can't be compared. When QEMU exits,
//! the plugin writes a file with a line `LABEL SWITCHES TOTAL...` for each group. A line `ADDRESS COUNT`
//! for each instruction of the group's shortest sample follows, and an empty line.
//!
//! The plugin supports one CPU only: callbacks are not synchronised.

use std::{
    cell::UnsafeCell,
    collections::{BTreeMap, HashMap},
    ffi::{c_char, c_int, c_uint, c_void, CStr},
    fs::File,
    io::{BufWriter, Write},
};

/// Version of QEMU's plugin interface that this file uses, that of QEMU 11.1.
#[no_mangle]
pub static qemu_plugin_version: c_int = 7;

/// `nopl DISP(%rax)`.
const NOPL: [u8; 3] = [0x0f, 0x1f, 0x80];
/// Upper half of the displacement.
const MAGIC: [u8; 2] = [0xa0, 0x6f];
/// As [`MAGIC`], for 16 bits of a number in the lower half. The highest bits come first.
const NUMBER: [u8; 2] = [0xa1, 0x6f];
/// Lower half: a part starts.
const START: u16 = 1;
/// Lower half: a part ends.
const END: u16 = 2;
/// Lower half: the number is the address of the kernel's task switch, which has the previous task in
/// RDI and the next one in RSI.
const SWITCHES_HERE: u16 = 3;
/// Lower half: the number is the address of the entry point of device interrupts.
const INTERRUPTS_HERE: u16 = 4;
/// Lower half: a sample ends; the other bits are its label.
const SAMPLE: u16 = 0x8000;

/// Instruction that ends an interrupt.
const IRETQ: [u8; 2] = [0x48, 0xcf];
const KERNEL: u64 = 1 << 63;

const NO_REGISTERS: c_int = 0;
const READS_REGISTERS: c_int = 1;
const NOT_EQUAL: c_int = 3;

/// A number that translated code reads without a callback.
#[repr(C)]
#[derive(Clone, Copy)]
struct ScoreboardEntry {
    scoreboard: *mut c_void,
    offset: usize,
}

/// GLib's `GByteArray`, and the first fields of its `GArray`.
#[repr(C)]
struct Array {
    data: *mut c_void,
    length: c_uint,
}

/// A register of the CPU.
#[repr(C)]
struct Register {
    handle: *mut c_void,
    name: *const c_char,
    feature: *const c_char,
    is_readonly: bool,
}

/// Handles of the registers with the previous and the next task of a switch, and a buffer for values.
#[derive(Clone, Copy)]
struct Registers {
    rdi: *mut c_void,
    rsi: *mut c_void,
    bytes: *mut Array,
}

type Executed = extern "C" fn(c_uint, *mut c_void);

extern "C" {
    fn qemu_plugin_register_vcpu_tb_trans_cb(
        id: u64,
        callback: extern "C" fn(*mut c_void, *mut c_void),
        data: *mut c_void,
    );
    fn qemu_plugin_register_atexit_cb(id: u64, callback: extern "C" fn(), data: *mut c_void);
    fn qemu_plugin_tb_n_insns(block: *const c_void) -> usize;
    fn qemu_plugin_tb_get_insn(block: *const c_void, index: usize) -> *mut c_void;
    fn qemu_plugin_insn_vaddr(instruction: *const c_void) -> u64;
    fn qemu_plugin_insn_data(instruction: *const c_void, to: *mut u8, length: usize) -> usize;
    fn qemu_plugin_register_vcpu_insn_exec_cb(
        instruction: *mut c_void,
        callback: Executed,
        flags: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_insn_exec_cond_cb(
        instruction: *mut c_void,
        callback: Executed,
        flags: c_int,
        condition: c_int,
        entry: ScoreboardEntry,
        operand: u64,
        data: *mut c_void,
    );
    fn qemu_plugin_get_registers() -> *mut Array;
    fn qemu_plugin_read_register(handle: *mut c_void, to: *mut Array) -> bool;
    fn g_byte_array_new() -> *mut Array;
    fn g_byte_array_set_size(array: *mut Array, length: c_uint) -> *mut Array;
    fn qemu_plugin_scoreboard_new(element_size: usize) -> *mut c_void;
    fn qemu_plugin_u64_set(entry: ScoreboardEntry, cpu: c_uint, value: u64);
}

/// Effect of an instruction on the counting.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Other,
    Switch,
    Interrupt,
    Return,
}

/// An instruction of the kernel.
struct Instruction {
    address: u64,
    kind: Kind,
    /// Number of executions in this sample.
    count: u64,
}

/// Samples with the same label and number of switches.
#[derive(Default)]
struct Group {
    totals: Vec<u64>,
    /// Addresses and counts of the shortest sample.
    shortest: Vec<(u64, u64)>,
}

struct Counter {
    /// Nonzero during a part.
    counting: ScoreboardEntry,
    output: String,
    instructions: HashMap<u64, *mut Instruction>,
    /// Instructions with a nonzero count.
    executed: Vec<*mut Instruction>,
    groups: BTreeMap<(u16, u64), Group>,
    registers: Option<Registers>,
    number: u64,
    /// The program's task, known from the first task switch of a part on.
    task: Option<u64>,
    is_running: bool,
    is_interrupted: bool,
    switches: u64,
}

struct Global(UnsafeCell<Option<Counter>>);

// SAFETY: QEMU runs one CPU in one thread, and makes the exit callback after that thread has ended.
unsafe impl Sync for Global {}

static COUNTER: Global = Global(UnsafeCell::new(None));

/// Calls a function with the counter.
fn with<R>(function: impl FnOnce(&mut Counter) -> R) -> Option<R> {
    // SAFETY: As for `Sync`. Callbacks are not nested, and FUNCTION does not call one.
    unsafe { (*COUNTER.0.get()).as_mut() }.map(function)
}

extern "C" fn executed(_cpu: c_uint, data: *mut c_void) {
    // SAFETY: `Counter::instruction` allocated it, and it is never freed.
    let instruction = unsafe { &mut *data.cast::<Instruction>() };
    with(|counter| counter.execute(instruction));
}

extern "C" fn marked(cpu: c_uint, data: *mut c_void) {
    // CAST: The data was made from a u16.
    let mark = data as usize as u16;
    with(|counter| match mark {
        START => {
            (counter.task, counter.is_running, counter.is_interrupted) = (None, true, false);
            // SAFETY: The scoreboard exists.
            unsafe { qemu_plugin_u64_set(counter.counting, cpu, 1) };
        }
        // SAFETY: The scoreboard exists.
        END => unsafe { qemu_plugin_u64_set(counter.counting, cpu, 0) },
        SWITCHES_HERE => counter.set_kind(Kind::Switch),
        INTERRUPTS_HERE => counter.set_kind(Kind::Interrupt),
        mark if mark & SAMPLE != 0 => counter.end_sample(mark & !SAMPLE),
        _ => {}
    });
}

extern "C" fn given_number(_cpu: c_uint, data: *mut c_void) {
    // CAST: The data was made from a u16.
    with(|counter| counter.number = counter.number << 16 | data as u64);
}

impl Registers {
    /// Must be called, as `read`, by a callback of a CPU that may read registers.
    fn new() -> Self {
        // SAFETY: QEMU returns an array of `Register`, whose names are C strings.
        let registers = unsafe {
            let array = &*qemu_plugin_get_registers();
            std::slice::from_raw_parts(array.data.cast::<Register>(), array.length as usize)
        };
        let handle = |name| {
            registers
                .iter()
                // SAFETY: As above.
                .find(|register| unsafe { CStr::from_ptr(register.name) } == name)
                .expect("QEMU should have this register")
                .handle
        };
        Self {
            rdi: handle(c"rdi"),
            rsi: handle(c"rsi"),
            // SAFETY: The function has no preconditions.
            bytes: unsafe { g_byte_array_new() },
        }
    }

    fn read(&self, handle: *mut c_void) -> u64 {
        // SAFETY: The handle comes from QEMU, which appends the register's bytes to the array.
        unsafe {
            g_byte_array_set_size(self.bytes, 0);
            qemu_plugin_read_register(handle, self.bytes);
            assert_eq!((*self.bytes).length, 8);
            (*self.bytes).data.cast::<u64>().read_unaligned()
        }
    }
}

impl Counter {
    fn instruction(&mut self, address: u64) -> *mut Instruction {
        *self.instructions.entry(address).or_insert_with(|| {
            Box::into_raw(Box::new(Instruction {
                address,
                kind: Kind::Other,
                count: 0,
            }))
        })
    }

    fn set_kind(&mut self, kind: Kind) {
        let instruction = self.instruction(self.number);
        // SAFETY: The instruction is never freed, and no other reference to it exists now.
        unsafe { (*instruction).kind = kind };
    }

    fn execute(&mut self, instruction: &mut Instruction) {
        match instruction.kind {
            Kind::Switch => {
                let registers = *self.registers.get_or_insert_with(Registers::new);
                let (from, to) = (registers.read(registers.rdi), registers.read(registers.rsi));
                let task = *self.task.get_or_insert(from);
                self.switches += u64::from(from == task);
                self.is_running = to == task;
            }
            Kind::Interrupt => self.is_interrupted = !self.is_running,
            Kind::Other | Kind::Return => {}
        }
        if self.is_running || self.is_interrupted {
            if instruction.count == 0 {
                self.executed.push(instruction);
            }
            instruction.count += 1;
        }
        if instruction.kind == Kind::Return {
            self.is_interrupted = false;
        }
    }

    fn end_sample(&mut self, label: u16) {
        let switches = std::mem::take(&mut self.switches);
        let mut total = 0;
        let mut counts = Vec::with_capacity(self.executed.len());
        for instruction in self.executed.drain(..) {
            // SAFETY: `Counter::instruction` allocated it, and it is never freed.
            let instruction = unsafe { &mut *instruction };
            let count = std::mem::take(&mut instruction.count);
            total += count;
            counts.push((instruction.address, count));
        }
        let group = self.groups.entry((label, switches)).or_default();
        if group.totals.iter().all(|other| total < *other) {
            group.shortest = counts;
        }
        group.totals.push(total);
    }

    fn write(&self) -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(&self.output)?);
        for ((label, switches), group) in &self.groups {
            write!(file, "{label} {switches}")?;
            for total in &group.totals {
                write!(file, " {total}")?;
            }
            writeln!(file)?;
            for (address, count) in &group.shortest {
                writeln!(file, "{address:x} {count}")?;
            }
            writeln!(file)?;
        }
        file.flush()
    }
}

extern "C" fn translated(block: *mut c_void, _data: *mut c_void) {
    // SAFETY: QEMU passes a block.
    let count = unsafe { qemu_plugin_tb_n_insns(block) };
    for index in 0..count {
        let mut bytes = [0; 7];
        // SAFETY: The block has that many instructions, and the buffer that many bytes.
        let (instruction, address, length) = unsafe {
            let instruction = qemu_plugin_tb_get_insn(block, index);
            let length = qemu_plugin_insn_data(instruction, bytes.as_mut_ptr(), bytes.len());
            (instruction, qemu_plugin_insn_vaddr(instruction), length)
        };
        let mark: Option<Executed> = match (bytes[..3] == NOPL, [bytes[5], bytes[6]]) {
            (true, MAGIC) => Some(marked),
            (true, NUMBER) => Some(given_number),
            _ => None,
        };
        if let Some(mark) = mark {
            let low = usize::from(u16::from_le_bytes([bytes[3], bytes[4]]));
            // SAFETY: QEMU returned the instruction; the data is a number.
            unsafe {
                qemu_plugin_register_vcpu_insn_exec_cb(
                    instruction,
                    mark,
                    NO_REGISTERS,
                    low as *mut c_void,
                );
            }
        } else if address & KERNEL != 0 {
            let Some((data, counting)) =
                with(|counter| (counter.instruction(address), counter.counting))
            else {
                continue;
            };
            if bytes[..2] == IRETQ && length == 2 {
                // SAFETY: The instruction is never freed, and no other reference to it exists now.
                unsafe { (*data).kind = Kind::Return };
            }
            // SAFETY: QEMU returned the instruction, and the scoreboard and the data are never freed.
            unsafe {
                qemu_plugin_register_vcpu_insn_exec_cond_cb(
                    instruction,
                    executed,
                    READS_REGISTERS,
                    NOT_EQUAL,
                    counting,
                    0,
                    data.cast(),
                );
            }
        }
    }
}

extern "C" fn exiting() {
    if let Some(Err(error)) = with(|counter| counter.write()) {
        eprintln!("The counts can't be written: {error}");
    }
}

/// Installs the plugin; QEMU calls this. The argument is `output=FILE`.
///
/// # Safety
///
/// `argv` has `argc` strings.
#[no_mangle]
pub unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    _info: *const c_void,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    let output = (0..usize::try_from(argc).unwrap_or(0)).find_map(|index| {
        // SAFETY: By the function's contract.
        let argument = unsafe { CStr::from_ptr(*argv.add(index)) };
        argument.to_str().ok()?.strip_prefix("output=")
    });
    let Some(output) = output else {
        eprintln!("The plugin needs an argument output=FILE.");
        return 1;
    };
    // SAFETY: No callback runs before this function returns.
    unsafe {
        *COUNTER.0.get() = Some(Counter {
            counting: ScoreboardEntry {
                scoreboard: qemu_plugin_scoreboard_new(size_of::<u64>()),
                offset: 0,
            },
            output: output.to_owned(),
            instructions: HashMap::new(),
            executed: Vec::new(),
            groups: BTreeMap::new(),
            registers: None,
            number: 0,
            task: None,
            is_running: false,
            is_interrupted: false,
            switches: 0,
        });
        qemu_plugin_register_vcpu_tb_trans_cb(id, translated, std::ptr::null_mut());
        qemu_plugin_register_atexit_cb(id, exiting, std::ptr::null_mut());
    }
    0
}
