# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Build results, stored by the content of their sources. Clones with the same sources share them."""

import fnmatch
import os
import shutil
import time

from . import cache, steps
from .failure import Failure

# Of each kind, the KEPT newest results are kept, and those that were used in the last HOURS.
KEPT, HOURS = 40, 12
# Limit on attempts of a build whose sources change meanwhile.
ATTEMPTS = 5


class Changed(Exception):
    """The sources have changed since the build began."""


def ignored():
    """Returns the patterns of names and paths of files that builds leave in a clone."""
    lines = (cache.CLONE / ".gitignore").read_text().splitlines()
    return [line.rstrip("/") for line in lines if line and not line.startswith("#")]


def sources(*folders):
    """Returns the files of the clone's folders, including targets of links, without those that a build leaves."""
    patterns = ignored()
    found = []
    for folder in folders:
        for place, names, files in os.walk(cache.CLONE / folder, followlinks=True):
            names[:] = sorted(name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns))
            for name in sorted(files):
                path = os.path.join(place, name)
                relative = "/" + os.path.relpath(path, cache.CLONE)
                if not any(fnmatch.fnmatch(name, pattern) or relative == pattern for pattern in patterns):
                    found.append(path)
    return found


def key(folders, *others):
    """A short hash of the names and contents of the files in the clone's folders, and of texts."""
    parts = list(others)
    for path in sources(*folders):
        with open(path, "rb") as file:
            parts += [os.path.relpath(path, cache.CLONE), cache.digest(file.read())]
    return cache.key(*parts)


def build(kind, folders, others, what, gigabytes, make):
    """Returns the folder with the build results of the clone's FOLDERS and of OTHERS, which are texts.

    If it does not exist, make() builds the results and returns their files. A build whose sources change meanwhile is repeated.
    """
    for _ in range(ATTEMPTS):
        name = key(folders, *others)
        path = cache.folder(kind) / name

        def fill(temporary, name=name):
            made = make()
            if key(folders, *others) != name:
                raise Changed
            temporary.mkdir()
            for file in made:
                shutil.copy(file, temporary)

        try:
            cache.make(path, what, gigabytes, fill)
        except Changed:
            steps.note(f"{what} is built again, as its sources have changed meanwhile")
            continue
        keep(path)
        return path
    raise Failure(f"The sources of {what} changed during each of {ATTEMPTS} builds: do not edit them during the next one.")


def keep(path):
    """Marks an entry as used, and removes entries of its kind that were not used for long."""
    os.utime(path)
    discard_old(path.parent)


def discard_old(folder):
    """Removes entries that were not used for long."""
    known = sorted((path for path in folder.iterdir() if path.suffix != ".tmp"), key=steps.changed, reverse=True)
    for path in known[KEPT:]:
        # The time is compared under the entry's lock, as another process may have used the entry since the lines above.
        cache.discard(path, before=time.time() - HOURS * 3600)
