# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""How many tests passed, failed and were skipped."""

from dataclasses import dataclass, field


@dataclass
class Tally:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)

    def fail(self, name, count=1):
        self.failed += count
        self.failures.append(name)

    def total(self):
        return self.passed + self.failed + self.skipped

    def __iadd__(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += other.failures
        return self

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
