#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Prints one line `case | result` for each way to use the uverbs interface of the EFA driver that is loaded.

make abi-diff runs this with both drivers and compares. By hand, in a guest with the devices that the file `devices` has:
run.py [SUBJECT...], each of which is what names begin with, or a pattern as of file names
"""

import sys

import harness

# In the order in which the cases run.
import case_registers  # noqa: F401
import case_context  # noqa: F401
import case_query  # noqa: F401
import case_cq  # noqa: F401
import case_cq_memory  # noqa: F401
import case_qp_create  # noqa: F401
import case_qp_modify  # noqa: F401
import case_req_id  # noqa: F401
import case_comp_cntr  # noqa: F401
import case_mr  # noqa: F401
import case_ah  # noqa: F401
import case_mmap  # noqa: F401
import case_framing  # noqa: F401
import case_process  # noqa: F401

if __name__ == "__main__":
    harness.Runner().run(sys.argv[1:])
