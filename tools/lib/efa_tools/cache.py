# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The cache folder: where things are kept, who may make them, and whether there is room.

Whatever is found under its final name is complete: it is made under another name, by one process at a time, and
renamed.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
from pathlib import Path

from . import namespace, steps
from .failure import Failure

CLONE = Path(__file__).resolve().parents[3]


def folder(*parts):
    """The cache folder, or a folder in it, which is made if need be."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = base.absolute().joinpath("efa-rs", *parts)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"The cache folder {path} cannot be made ({error.strerror}): set XDG_CACHE_HOME to one that can.")
    return path


def clone_folder(*parts):
    """The folder of what this clone builds."""
    return folder("clone", key(str(CLONE)), *parts)


def key(*parts):
    """A short hash of texts and files."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.read_bytes() if isinstance(part, Path) else part.encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()[:12]


@contextlib.contextmanager
def lock(name):
    """Lets one process at a time make what NAME stands for."""
    with open(folder("locks") / name, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            steps.note(f"waiting for another run that makes {name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def use(path):
    """Keeps a folder from discard() for as long as this process lives."""
    # Never closed: the lock goes with the process, however that ends.
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def discard(path):
    """Removes a folder, unless a process uses it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        namespace.remove(path)
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)


def require_space(gigabytes, what):
    """Fails unless there is room for what is about to be made."""
    free = shutil.disk_usage(folder()).free / 1e9
    if free < gigabytes:
        raise Failure(
            f"There is no room for {what}: it needs {gigabytes} GB in {folder()} and {free:.1f} GB are free;"
            " free some, or set XDG_CACHE_HOME to a folder on a larger disk."
        )


def make(path, what, gigabytes, build):
    """Returns PATH, made by build(temporary path) if it is not there. A killed build leaves only the temporary one."""
    if path.exists():
        return path
    with lock(f"{path.parent.name}-{path.name}"):
        if path.exists():
            return path
        require_space(gigabytes, what)
        temporary = path.with_name(path.name + ".tmp")
        namespace.remove(temporary)
        path.parent.mkdir(parents=True, exist_ok=True)
        build(temporary)
        temporary.rename(path)
    return path
