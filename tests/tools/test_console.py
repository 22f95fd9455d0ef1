# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import unittest

import support
from efa_tools import console


class Console(unittest.TestCase):
    def test_trouble_is_found(self):
        for line in (
            "[    9.1] BUG: kernel NULL pointer dereference, address: 0000000000000000",
            "[    9.1] WARNING: drivers/x.c:12 at f+0x1/0x2, CPU#0: sh/1",
            "[    9.1] Oops: Oops: 0002 [#1] SMP NOPTI",
            "[  130.5] INFO: task insmod:123 blocked for more than 120 seconds.",
            "[   60.0] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks: stall",
            "[   60.0] watchdog: BUG: soft lockup - CPU#1 stuck for 26s!",
            "[    9.1] rust_kernel: panicked at library/core/x.rs:1:1:",
            "[    9.1] Kernel panic - not syncing: Attempted to kill init!",
            "[    9.1] BUG: KASAN: slab-use-after-free in f+0x1/0x2 [efa]",
            "[    9.1] WARNING: possible circular locking dependency detected",
            "[    9.1] [ BUG: Invalid wait context ]",
            "[    9.1] BUG: sleeping function called from invalid context at kernel/locking/mutex.c:1",
            "[    9.1] INFO: trying to register non-static key.",
            "[    9.1] DMA-API: cacheline tracking ENOMEM, dma-debug disabled",
            "[    9.1] DMA-API: debugging out of memory - disabling",
            "[    9.1] ODEBUG: Out of memory. ODEBUG disabled",
            "[    9.1] kmemleak: Kernel memory leak detector disabled",
            "[    9.1] Oops: general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP NOPTI",
        ):
            self.assertIn(line, console.trouble(f"[    1.0] fine\n{line}\n[    9.2] more\n"))

    def test_a_healthy_log_has_none(self):
        log = "[    0.5] MDS: Vulnerable: debug\n[    7.5] efa: loading out-of-tree module taints kernel.\n[    8.0] efa_0: ok\n"
        log += "[   13.1] kmemleak: Kernel memory leak detector initialized (mem pool available: 15608)\n"
        log += "[  153.5] kmemleak: Cannot allocate a scan area, scanning the full object\n"
        log += "[  160.1] traps: crash[97] general protection fault ip:401136 sp:7ffd0 error:0 in crash[401000+1000]\n"
        log += self.oom("CONSTRAINT_MEMCG")
        self.assertEqual(console.trouble(log), [])

    def test_memory_of_a_cgroup_is_the_programs(self):
        for constraint, inside, wanted in (("NONE", "", "Call Trace:"), ("MEMCG", "[    9.0] BUG: bad page state\n", "BUG: bad")):
            found = console.trouble(self.oom("CONSTRAINT_MEMCG") + self.oom(f"CONSTRAINT_{constraint}", inside), context=1)
            self.assertIn(wanted, found[-1])

    @staticmethod
    def oom(constraint, inside=""):
        head = f"[    9.0] dd invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0\n[    9.0] Call Trace:\n[    9.0]  <TASK>\n{inside}"
        return f"{head}[    9.0] oom-kill:constraint={constraint},nodemask=(null)\n[    9.0] out of memory: Killed process 9 (dd)\n"

    REPORT = (
        "[    9.0] ------------[ cut here ]------------\n"
        "[    9.0] WARNING: fs/x.c:1 at warns+0x1/0x2, CPU#0: sh/1\n"
        "[    9.0]  caller+0x1/0x2\n"
        "[    9.0] ---[ end trace 0000000000000000 ]---"
    )

    def test_a_known_warning_is_no_trouble(self):
        log = f"[    8.0] one\n{self.REPORT}\n[    9.1] two"
        self.assertEqual(console.without(log, [("warns", "caller")]), ("[    8.0] one\n[    9.1] two", 1))
        self.assertEqual(console.unexpected_taint(str(1 << 9), console.WARNING_TAINT), "")

    def test_user_mode_linux_shows_addresses_before_callers(self):
        report = self.REPORT.replace("]  caller", "]  [<6025b566>] caller")
        self.assertNotEqual(report, self.REPORT)
        self.assertEqual(console.without(report, [("warns", "caller")]), ("", 1))

    def test_others_are(self):
        for known in ([], [("warns", "other")], [("other", "caller")], [("warn", "caller")]):
            self.assertEqual(console.without(self.REPORT, known), (self.REPORT, 0))
        two = self.REPORT.replace("[    9.0]  caller", "[    9.0] BUG: KASAN: bad\n[    9.0]  caller")
        for log in (two, self.REPORT.rsplit("\n", 1)[0], "[    1.0] WARNING: x at warns+0x1"):
            self.assertEqual(console.without(log, [("warns", "caller")]), (log, 0))

    def test_the_known_warnings_of_the_debug_kernel(self):
        text = (support.CLONE / "tests" / "debug" / "known-reports").read_text()
        self.assertIn(("remove_proc_entry", "unregister_irq_proc"), console.known_reports(text))

    def test_taints_of_loading_the_module_are_expected(self):
        self.assertEqual(console.unexpected_taint("0\n"), "")
        self.assertEqual(console.unexpected_taint(str(1 << 12 | 1 << 13)), "")

    def test_other_taints_are_not(self):
        self.assertEqual(console.unexpected_taint(str(1 << 9 | 1 << 12)), "W")
        self.assertEqual(console.unexpected_taint(str(1 << 7)), "D")


if __name__ == "__main__":
    unittest.main()
