# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Common code of probe_errors.py and probe_timeouts.py: probes of a device with faults.

Each test case makes the device misbehave and binds it. The result is `ok` or the errno, and the number of the driver's
protocol errors, if there are any. After a failure, the driver has released all resources, and the log has the reason. After
success and failure alike, a healthy device can be bound.
"""

import selftest
from selftest import DRIVER, Failed, KernelLog, equal

log = KernelLog()
main = selftest.any_function()


class Probes(selftest.Suite):
    """Test cases that are probes. In each, the device has `attributes` in addition to those of the test case."""

    def __init__(self, **attributes):
        super().__init__()
        self.attributes = attributes

    def probe(self, function, rules=(), settings=None):
        """Binds the device while it misbehaves, checks for leaks, and returns the result."""
        for when, then, *how_often in rules:
            function.inject(when, then, **(how_often[0] if how_often else {}))
        function.set(**self.attributes, **(settings or {}))
        errors = function.protocol_errors()
        list(log.records())
        # A driver that has begun to use the device resets it when it gives up.
        with function.resets_meanwhile() as self.resets:
            result = function.bind()
            if result == "ok":
                if function.unbind() != "ok":
                    raise Failed("it can't be unbound")
                function.healthy = True
        self.errors = log.driver_errors(function)
        if result != "ok" and DRIVER == "rust" and not self.errors:
            raise Failed(f"{result}, without a reason in the log")
        if left := function.leftovers():
            raise Failed(f"{result}, with leftovers: {', '.join(left)}")
        if held := {name: count for name, count in function.state()["resources"].items() if count}:
            raise Failed(f"{result}, and the device still has {held}")
        errors = function.protocol_errors() - errors
        return f"{result}, {errors} protocol errors" if errors else result

    def add_probe(self, name, wanted, rules=(), settings=None):
        """Adds a test case that is one probe."""
        self.add(name, lambda: self.probe(main, rules, settings), wanted)

    def run_all(self):
        """Runs the test cases, and leaves the device bound."""
        if not selftest.emulator:
            selftest.skip_all("needs the emulator")
        try:
            self.run(before, after)
        finally:
            main.rebind()


def before():
    main.clear()
    main.healthy = False
    if main.is_bound:
        equal(main.unbind(), "ok", "unbind")


def after():
    """Checks that a healthy device works again, unless the test case has just shown that."""
    main.clear()
    if not main.healthy:
        equal(main.bind(), "ok", "the next bind")
        if not main.names("infiniband"):
            raise Failed("the next probe has no RDMA device")
