# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What the tests of the tools share. They need only Python's own unittest: there is nothing to install or to pin."""

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

# Seconds, where a wait is not of wait_until().
PATIENCE = patience.PATIENCE
wait_until = patience.wait_until


class TemporaryCache(unittest.TestCase):
    """A test with a cache folder of its own, whose tools are silent."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        # What a test runs is not what the page of the repository is about.
        self.patch(mock.patch.dict(os.environ, {"XDG_CACHE_HOME": folder.name, "RECORD": ""}))
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
