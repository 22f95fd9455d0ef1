# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The exception by which a tool ends early."""

import errno
import re


class Failure(Exception):
    """A failure whose text is one sentence for the user: what failed, why and what to do."""


def match_in(pattern, text, where):
    """Returns the first match of a pattern in a text; fails if there is none. WHERE names the text in the error."""
    if match := re.search(pattern, text):
        return match
    raise Failure(f"{where} has nothing that matches {re.compile(pattern).pattern!r}: correct the text or the pattern.")


def sentence(error):
    """The text of a Failure, or of an error of the system."""
    if isinstance(error, Failure):
        return str(error)
    where = f" for {error.filename}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"There is no space left on the disk{where}: free some, or set XDG_CACHE_HOME to a folder on a larger one, and run this again."
        )
    return f"The system refused an operation{where} ({error.strerror or error}): correct the cause, and run this again."
