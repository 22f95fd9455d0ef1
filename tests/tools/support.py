# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Common parts of the tests of the tools. They need only Python's own unittest, so that nothing is to be installed or pinned."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

CLONE = Path(__file__).resolve().parents[2]
LIBRARY = CLONE / "tools" / "lib"
sys.path.insert(0, str(LIBRARY))

from efa_tools import patience

# Timeout in seconds of waits other than wait_until().
PATIENCE = patience.PATIENCE
wait_until = patience.wait_until


class TemporaryCache(unittest.TestCase):
    """A test with a cache folder of its own and with silent tools."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        # Runs within a test are not recorded on the page of the repository.
        self.patch(mock.patch.dict(os.environ, {"XDG_CACHE_HOME": folder.name}))
        self.patch(mock.patch("efa_tools.steps.note"))

    def patch(self, patcher):
        self.addCleanup(patcher.stop)
        return patcher.start()

    def python(self, script, **options):
        """Starts Python with the tools' library."""
        environment = {**os.environ, "PYTHONPATH": str(LIBRARY), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen([sys.executable, "-c", script], env=environment, text=True, **options)


def tool(name, *arguments, **environment):
    """Runs a tool to its end."""
    return subprocess.run(
        [CLONE / "tools" / name, *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
        check=False,
    )
