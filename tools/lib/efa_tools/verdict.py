# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""A check that passes or fails as a whole."""

from . import steps
from .failure import Failure
from .tally import Tally


def check(name, problems):
    """One check that passes if it has found no problem."""
    tally = Tally()
    if problems:
        steps.note(f"{name}: failed\n" + "\n".join(f"    {problem}" for problem in problems))
        tally.fail(name, said="\n".join(map(str, problems)))
    else:
        tally.succeed(name)
    return tally


def attempt(name, action, *arguments):
    """One check that passes if the action, such as a build, does not fail."""
    try:
        action(*arguments)
    except Failure as failure:
        return check(name, str(failure).splitlines())
    return check(name, [])
