# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The one way a tool ends early."""


class Failure(Exception):
    """Something went wrong; the text is one sentence for the user: what failed, why and what to do."""
