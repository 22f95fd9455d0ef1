# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Marks for count.rs: around each system call of a program while `counted`. A kernel module can mark its calls itself."""

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import shutil

START, END, SWITCHES_HERE, INTERRUPTS_HERE, SAMPLE = 1, 2, 3, 4, 0x8000
# Label of samples that are dropped.
DROPPED = 0x7FFF
MAGIC, NUMBER = 0x6FA0, 0x6FA1

WRITE, CLOSE, MMAP, MUNMAP, IOCTL, PREAD, OPENAT = 1, 3, 9, 11, 16, 17, 257
AT_FDCWD = -100

_code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)


def _function(code):
    """Returns a function that consists of machine code."""
    start = _code.tell()
    _code.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(_code)) + start
    return ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(address)


def _mark(what, magic=MAGIC):
    """Returns the instruction of a mark: nopl with a displacement that no compiler would use."""
    return b"\x0f\x1f\x80" + what.to_bytes(2, "little") + magic.to_bytes(2, "little")


# Loads the number and the arguments of the system call from an array. Only the call is between the marks, so that page
# faults of this program are not counted.
_LOAD = bytes.fromhex("488b07 488b7710 488b5718 4c8b5720 4c8b4728 4c8b4f30 488b7f08")
_system_call = _function(_LOAD + _mark(START) + b"\x0f\x05" + _mark(END) + b"\xc3")
_drop = _function(_mark(SAMPLE | DROPPED) + b"\xc3")
_labels = {}


def _pass_address(what, address):
    """Passes an address in the kernel, and its meaning, to count.rs."""
    number = b"".join(_mark(address >> shift & 0xFFFF, NUMBER) for shift in (48, 32, 16, 0))
    _function(number + _mark(what) + b"\xc3")(None)


def begin():
    """Passes the addresses of the task switch and of interrupts to count.rs. Must precede the first counted call."""
    wanted = {"__switch_to_asm": SWITCHES_HERE, "asm_common_interrupt": INTERRUPTS_HERE}
    with open("/proc/kallsyms") as file:
        for line in file:
            address, _, name, *_ = line.split()
            if name in wanted:
                _pass_address(wanted.pop(name), int(address, 16))
    if wanted:
        raise LookupError(f"the kernel has no symbol {' and no '.join(wanted)}")


def call(number, *arguments):
    """Makes a system call that is counted."""
    array = (ctypes.c_long * 7)(number, *arguments)
    result = _system_call(ctypes.addressof(array))
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


def end_sample(name):
    """Ends a sample of NAME, which consists of all counts since the previous sample."""
    if name not in _labels:
        _labels[name] = len(_labels), _function(_mark(SAMPLE | len(_labels)) + b"\xc3")
    _labels[name][1](None)


def drop_sample():
    """Drops all counts since the previous sample."""
    _drop(None)


def finish(folder, **results):
    """Writes the labels and kernel symbols that explain the counts, and further results of the program."""
    # In the order of the marks' numbers.
    results["labels"] = list(_labels)
    (folder / "results.json").write_text(json.dumps(results))
    shutil.copyfile("/proc/kallsyms", folder / "kallsyms")


def _write(fd, data):
    memory = ctypes.create_string_buffer(bytes(data), len(data))
    return call(WRITE, fd, ctypes.addressof(memory), len(data))


def _open(path, flags):
    memory = ctypes.create_string_buffer(os.fsencode(path))
    return call(OPENAT, AT_FDCWD, ctypes.addressof(memory), flags)


def _ioctl(fd, request, data):
    return call(IOCTL, fd, request, ctypes.addressof(ctypes.c_char.from_buffer(data)))


@contextlib.contextmanager
def counted():
    """Counts the system calls of the modules uverbs and objects within the block."""
    originals = os.write, os.open, os.close, fcntl.ioctl
    os.write, os.open, os.close, fcntl.ioctl = _write, _open, lambda fd: call(CLOSE, fd), _ioctl  # type: ignore[assignment]
    try:
        yield
    finally:
        os.write, os.open, os.close, fcntl.ioctl = originals
