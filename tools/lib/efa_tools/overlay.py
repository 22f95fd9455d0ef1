# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Changed roots of guests: a user's folder with the differences from a userland, written by programs of this host.

In the folder, `upper` has the changes, and `of` has the path of the root that they were made to.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from . import arm64, cache, namespace, userland
from .failure import Failure

# Paths in the toolroot: of the folder, of the root below it, and of the mount of both.
UPPER, LOWER, MOUNT = Path("/run/efa-rs/overlay"), Path("/run/efa-rs/lower"), Path("/mnt")


def run(folder, name, command):
    """Runs a command in the root, a userland of that name with the folder's changes; returns the exit status."""
    lower = userland.root(name)
    folder = folder.absolute()
    try:
        for part in ("upper", "work", "mount"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mark = folder / "of"
            if not mark.exists():
                mark.write_text(str(lower))
            check(folder, lower)
            root = namespace.Overlay([lower], folder / "mount", folder / "upper", folder / "work")
            terminal = {"TERM": os.environ.get("TERM", "dumb")} if sys.stdin.isatty() else {}
            inside = namespace.enter(root, command, [(cache.CLONE, "/efa-rs", "ro")], terminal)
            return subprocess.run(inside, check=False).returncode
    except BlockingIOError:
        raise Failure(f"The root {folder} is in use: wait for what changes it, or for the guests that have it.") from None
    except OSError as error:
        raise Failure(f"The folder {folder} cannot be used for a root ({error.strerror}): choose another one.") from error


def check(folder, lower):
    """Fails unless a folder has changes to this root."""
    try:
        made_of = (folder / "of").read_text()
    except OSError:
        raise Failure(f"There is no root in {folder}: make one by tools/vm root {folder} COMMAND.") from None
    if made_of != str(lower):
        raise Failure(f"The root in {folder} was made of {made_of}, and guests now have {lower}: remove it, and make it again.")


def use(folder, name, release):
    """Ensures that guests can boot from a folder, and that it is not changed while this process lives."""
    if arm64.is_release(release):
        raise Failure("A root for arm64 cannot be changed here, where its programs don't run: leave --overlay out.")
    check(folder, userland.root(name, release))
    # Never closed: the end of the process releases the lock.
    descriptor = os.open(folder / "lock", os.O_RDONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Failure(f"The root {folder} is being changed: wait until that is over.") from None


def share(folder, name, release):
    """Like userland.share(), for the changed root. Also returns a command that mounts it, and then runs its arguments."""
    _, binds = userland.share(name, release)
    modules = [target for _, target, _ in binds if target.endswith(userland.MODULES)]
    # Guests only read it, so that any number of them can use it at the same time.
    options = namespace.Overlay([UPPER / "upper", LOWER], MOUNT).options()
    steps = [f"mount -t overlay -o {options} overlay {MOUNT}", *(f"mount --bind {target} {MOUNT}/{userland.MODULES}" for target in modules)]
    prefix = ("sh", "-c", " && ".join([*steps, 'exec "$@"']), "sh")
    lower = [(userland.root(name, release), str(LOWER), "ro"), (folder.absolute(), str(UPPER), "ro")]
    return str(MOUNT), [*binds, *lower], prefix
