# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Counts the results in the output of kernel selftests (KTAP version 1)."""

import re

from .tally import Tally

# A subtest's lines are indented by two spaces, or quoted with "# " by the kselftest runner.
INDENT = re.compile(r"(?:# |  )*")
RESULT = re.compile(r"^(?P<bad>not )?ok (?P<number>\d+)\s*(?:- )?(?P<name>[^#]*)(?:#\s*(?P<directive>\w+))?")
PLAN = re.compile(r"^1\.\.(\d+)(?:\s*#\s*(?P<directive>SKIP))?")

# Limit on lines of diagnostics for each test: enough for some of kmemleak's reports with their backtraces.
DIAGNOSTICS = 80


class Block:
    """The tests of one level, from its start to the result of the test they belong to."""

    def __init__(self):
        self.plan: int | None = None
        self.skipped = False
        self.seen = 0
        self.tally = Tally()


def parts(line):
    """Returns the depth of a line, and its content."""
    content = INDENT.sub("", line, count=1)
    return (len(line) - len(content)) // 2, content.rstrip()


def parse(text):
    """Returns the tally of the leaf results. Planned tests that the output lacks have failed."""
    blocks, said = [Block()], []
    for line in text.splitlines():
        depth, content = parts(line)
        plan, result = PLAN.match(content), RESULT.match(content)
        if content.startswith("Bail out!"):
            blocks[0].tally.fail(content)
        if not plan and not result:
            said = [*said, content][-DIAGNOSTICS:] if re.match(r" *#", line) else []
            continue
        while len(blocks) <= depth:
            blocks.append(Block())
        if plan:
            # A second plan at the top is that of a second program.
            before = blocks[0].plan if depth == 0 else None
            blocks[depth].plan = (before or 0) + int(plan[1])
            blocks[depth].skipped = plan["directive"] == "SKIP"
            continue
        children = Tally()
        while len(blocks) > depth + 1:
            children += close(blocks.pop())
        blocks[depth].seen += 1
        count(blocks[depth].tally, result, children, "\n".join(said))
        said = []
    total = Tally()
    for block in reversed(blocks):
        total += close(block)
    if blocks[0].plan is None:
        total.fail("the output has no plan: the tests did not run")
    return total


def failures(text):
    """Returns the lines of failed results, each after the diagnostics that the test printed just before it."""
    found, said = [], []
    for line in text.splitlines():
        _, content = parts(line)
        result = RESULT.match(content)
        if result and result["bad"] and (result["directive"] or "").upper() != "SKIP":
            left_out = len(said) - DIAGNOSTICS
            found += said[:DIAGNOSTICS] + [f"({left_out} more lines)"] * (left_out > 0) + [line]
        # A line of diagnostics, with or without the "# " of its depth.
        if re.match(r" *#", line) and not result:
            said.append(line)
        else:
            said = []
    return found


def count(tally, result, children, said):
    """Adds a result: its subtests' results if it has any, else its own, and what the test SAID before it."""
    name = result["name"].strip() or f"test {result['number']}"
    for case in children.cases:
        case.name = f"{name}: {case.name}"
    if children.total() and not (result["bad"] and not children.failed):
        tally += children
    elif result["bad"]:
        tally += children
        tally.fail(name, said=said)
    elif (result["directive"] or "").upper() == "SKIP":
        tally.skip(name, result.string.partition("SKIP")[2].strip())
    else:
        tally.succeed(name)


def close(block):
    """Returns the tally of a level that has ended."""
    if block.plan is not None and block.seen != block.plan and not block.skipped:
        missing = block.plan - block.seen
        if missing > 0:
            block.tally.fail(f"{missing} of {block.plan} planned tests did not run", missing)
        else:
            block.tally.fail(f"{block.seen} tests ran but {block.plan} were planned")
    return block.tally
