#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Prints one line `case | result` for each way to use the uverbs interface of the EFA driver that is loaded.

tests/test_abi.py runs this with both drivers and compares the lines. By hand, in a guest with the devices of the file `devices`:
run.py [SUBJECT...], where a SUBJECT is a prefix of names, or a pattern as for file names
"""

import importlib
import sys

import harness

# In the order in which the cases run.
SUBJECTS = (
    *("registers", "context", "query", "cq", "cq_memory", "qp_create", "qp_modify", "req_id", "comp_cntr", "mr", "ah", "mmap", "udata"),
    *("framing", "process"),
)
for subject in SUBJECTS:
    importlib.import_module(f"case_{subject}")

if __name__ == "__main__":
    harness.Runner().run(sys.argv[1:])
