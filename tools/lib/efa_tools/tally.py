# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""How many tests passed, failed and were skipped."""

from dataclasses import dataclass, field

# How a test ended.
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass
class Case:
    """A test whose name is known."""

    name: str
    outcome: str
    said: str = ""


@dataclass
class Tally:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)
    # The counted tests whose names are known.
    cases: list[Case] = field(default_factory=list)

    def fail(self, name, count=1, said=""):
        self.failed += count
        self.failures.append(name)
        self.cases.append(Case(name, FAILED, said))

    def succeed(self, name):
        self.passed += 1
        self.cases.append(Case(name, PASSED))

    def skip(self, name, why=""):
        self.skipped += 1
        self.cases.append(Case(name, SKIPPED, why))

    def total(self):
        return self.passed + self.failed + self.skipped

    def __iadd__(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += other.failures
        self.cases += other.cases
        return self

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
