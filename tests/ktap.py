# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Parses the output of kernel selftests (KTAP version 1)."""

import re

# A subtest's lines are indented by two spaces, or quoted with "# " by the kselftest runner.
INDENT = re.compile(r"(?:# |  )*")
RESULT = re.compile(r"^(?P<bad>not )?ok (?P<number>\d+)\s*(?:- )?(?P<name>[^#]*)(?:#\s*(?P<directive>\w+)\s*(?P<why>.*))?")
PLAN = re.compile(r"^1\.\.(\d+)(?:\s*#\s*(?P<directive>SKIP)\s*(?P<why>.*))?")
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
# Limit on lines of diagnostics for each test: enough for some of kmemleak's reports with their backtraces.
DIAGNOSTICS = 80


class Block:
    """The tests of one level, from its start to the result of the test they belong to."""

    def __init__(self):
        self.plan, self.skipped, self.seen, self.cases = None, None, 0, []

    def close(self):
        """Returns the results of a level that has ended. Planned tests that the output lacks have failed."""
        if self.plan is not None and self.seen != self.plan and self.skipped is None:
            missing = self.plan - self.seen
            what = (
                f"{missing} of {self.plan} planned tests did not run" if missing > 0 else f"{self.seen} tests ran, {self.plan} were planned"
            )
            self.cases += [(what, FAILED, "")] * max(1, missing)
        return self.cases


def parse(text):
    """Returns the leaf results, as tuples of name, outcome, and what the test said before it."""
    blocks, said = [Block()], []
    for line in text.splitlines():
        content = INDENT.sub("", line, count=1).rstrip()
        depth = (len(line) - len(INDENT.sub("", line, count=1))) // 2
        plan, result = PLAN.match(content), RESULT.match(content)
        if content.startswith("Bail out!"):
            blocks[0].cases.append((content, FAILED, ""))
        if not plan and not result:
            said = [*said, content][-DIAGNOSTICS:] if re.match(r" *#", line) else []
            continue
        while len(blocks) <= depth:
            blocks.append(Block())
        if plan:
            # A second plan at the top is that of a second program.
            blocks[depth].plan = ((blocks[0].plan or 0) if depth == 0 else 0) + int(plan[1])
            blocks[depth].skipped = plan["why"]
            continue
        children = []
        while len(blocks) > depth + 1:
            children += blocks.pop().close()
        blocks[depth].seen += 1
        blocks[depth].cases += results(result, children, "\n".join(said))
        said = []
    found = [case for block in reversed(blocks) for case in block.close()]
    if blocks[0].plan is None:
        found.append(("the output has no plan: the tests did not run", FAILED, "\n".join(text.splitlines()[-DIAGNOSTICS:])))
    if blocks[0].skipped is not None and not found:
        found.append(("all", SKIPPED, blocks[0].skipped))
    return found


def results(result, children, said):
    """Returns a test's subtests' results if it has any, else its own."""
    name = result["name"].strip() or f"test {result['number']}"
    failed = result["bad"] and (result["directive"] or "").upper() != "SKIP"
    found = [(f"{name}: {child}", outcome, what) for child, outcome, what in children]
    if found and not (failed and all(outcome != FAILED for _, outcome, _ in found)):
        return found
    if failed:
        return [*found, (name, FAILED, said)]
    if (result["directive"] or "").upper() == "SKIP":
        return [(name, SKIPPED, result["why"] or said)]
    return [(name, PASSED, "")]
