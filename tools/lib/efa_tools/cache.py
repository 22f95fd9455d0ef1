# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The cache folder: its entries, their locks, and its free space.

An entry is complete under its final name: one process at a time makes it under another name, and renames it.
"""

import contextlib
import fcntl
import functools
import hashlib
import math
import os
import shutil
import time
import tomllib
from pathlib import Path

from . import namespace, steps
from .failure import Failure

CLONE = Path(__file__).resolve().parents[3]


def folder(*parts):
    """Returns the cache folder, or a folder in it, which is created if it does not exist."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = base.absolute().joinpath("efa-rs", *parts)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"The cache folder {path} cannot be made ({error.strerror}): set XDG_CACHE_HOME to one that can.") from error
    return path


def clone():
    """Returns the folder of this clone's builds, which is kept while this process lives."""
    return claim(folder("clone"), CLONE)


@functools.cache
def claim(clones, owner):
    """Returns the folder in CLONES of the clone at the path OWNER.

    Folders of deleted clones are removed. A new clone takes over the newest of them, without the parts that depend on sources:
    third-party crates and the corpora of fuzzing remain.
    """
    path = clones / key(str(owner))
    with lock("clones"):
        gone = [other for other in clones.iterdir() if other != path and is_orphaned(other)]
        gone.sort(key=lambda other: other.stat().st_mtime)
        if gone and not path.exists() and (descriptor := lock_exclusively(gone[-1])) is not None:
            strip(gone[-1])
            gone.pop().rename(path)
            os.close(descriptor)
        path.mkdir(exist_ok=True)
        (path / OWNER).write_text(f"{owner}\n")
        use(path)
    for other in gone:
        discard(other)
    return path


# File in the folder of a clone with the clone's path.
OWNER = "path"
# Days after which a folder without that file counts as that of a deleted clone.
FORGOTTEN = 3


def is_orphaned(path):
    """Whether the clone of a folder is deleted."""
    try:
        return not Path((path / OWNER).read_text().strip()).exists()
    except OSError:
        return path.stat().st_mtime < time.time() - FORGOTTEN * 86400


def strip(path):
    """Removes all parts of a folder that depend on its clone.

    By file times, build results of one clone would count as up to date for another clone whose files are older.
    """
    for part in path.iterdir():
        if part.name != "emulator":
            namespace.remove(part) if part.is_dir() else part.unlink()
    ours = crates()
    for mark in path.glob("**/.fingerprint/*"):
        if mark.name.rpartition("-")[0] in ours:
            namespace.remove(mark)


def crates():
    """Returns the names of this project's crates."""
    manifests = [CLONE / "emulator" / "fuzz" / "Cargo.toml", *(CLONE / "emulator").glob("*/Cargo.toml")]
    return {tomllib.loads(file.read_text())["package"]["name"] for file in manifests if file.exists()}


def clone_folder(*parts):
    """Returns a folder in that of this clone's builds, which is created if it does not exist."""
    path = clone().joinpath(*parts)
    path.mkdir(parents=True, exist_ok=True)
    return path


def digest(content):
    return hashlib.sha256(content).hexdigest()


def key(*parts):
    """A short hash of texts and files."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.read_bytes() if isinstance(part, Path) else part.encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()[:12]


def write(path, text):
    """Writes a file atomically: another process sees all of it or nothing."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text)
    temporary.rename(path)


@contextlib.contextmanager
def lock(name):
    """Holds the lock NAME, which one process at a time can have."""
    with open(folder("locks") / name, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            steps.note(f"waiting for another run that makes {name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def use(path):
    """Protects a folder from discard() while this process lives."""
    # Never closed: the end of the process releases the lock.
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def lock_exclusively(path):
    """Returns a descriptor that locks a folder until it is closed; None if another process uses the folder, or it does not exist."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def in_use(path):
    """Whether a process protects a folder by use()."""
    if (descriptor := lock_exclusively(path)) is None:
        return True
    os.close(descriptor)
    return False


def discard(path, before=math.inf):
    """Removes a folder, unless a process uses it, or it has changed since the time BEFORE."""
    if (descriptor := lock_exclusively(path)) is not None:
        try:
            if os.stat(descriptor).st_mtime < before:
                namespace.remove(path)
        finally:
            os.close(descriptor)


def require_space(gigabytes, what):
    """Fails unless the disk has room for WHAT, which needs that many GIGABYTES."""
    free = shutil.disk_usage(folder()).free / 1e9
    if free < gigabytes:
        raise Failure(
            f"There is no room for {what}: it needs {gigabytes} GB in {folder()} and {free:.1f} GB are free;"
            " free some, or set XDG_CACHE_HOME to a folder on a larger disk."
        )


def make(path, what, gigabytes, build):
    """Returns PATH, which build(temporary path) makes if it does not exist.

    A killed build leaves only the temporary path, and a failed build leaves nothing.
    """
    if path.exists():
        return path
    with lock(f"{path.parent.name}-{path.name}"):
        if path.exists():
            return path
        require_space(gigabytes, what)
        temporary = path.with_name(path.name + ".tmp")
        namespace.remove(temporary)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            build(temporary)
            temporary.rename(path)
        except Exception:
            # The failed build may have filled the disk.
            namespace.remove(temporary)
            raise
    return path
