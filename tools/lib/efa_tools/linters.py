# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The programs that check sources: mypy, shellcheck and codespell of Debian 13, Linux's checkpatch, and ruff, which Debian does not have.

pip gets a release of ruff from the Python package index. checkpatch is in the source of the kernel that the driver is for.
"""

import contextlib
import os
import re
import subprocess
import tempfile
from pathlib import Path

from . import build, cache, layer, steps, toolroot
from .failure import Failure

RUFF = "0.17.6"
# Hash of its wheel for x86-64 and glibc, by which pip verifies that this is the reviewed file.
SHA256 = "aa3b08254a732acba246891089a152c47c5733dc36b8ecb76ce8602f8326e5e4"
# Paths in the toolroot: of ruff, of pip's settings, of a program's cache for a clone, and of the list of files.
INSTALLED, SETTINGS, KEPT, NAMES = "/run/efa-rs/ruff", "/run/efa-rs/pip.conf", "/run/efa-rs/kept", "/run/efa-rs/names"
# The folder of checkpatch in the toolroot, and the files in it.
SCRIPTS = "/run/efa-rs/scripts"
SCRIPT_FILES = ("checkpatch.pl", "const_structs.checkpatch", "spelling.txt")
# A line of checkpatch's output: the file, and the type of the message.
FOUND = re.compile(r"^(?P<file>[^:]+):\d+: (?:ERROR|WARNING|CHECK):(?P<type>\w+): ", re.MULTILINE)
# Variables of the host's environment that pip gets, for access to the index.
PASSED = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_PROXY", "PIP_DEFAULT_TIMEOUT", "PIP_RETRIES")


def settings():
    """Returns the mount of pip's settings on the host: the user's, or else the system's."""
    named = [Path(os.environ["PIP_CONFIG_FILE"])] if os.environ.get("PIP_CONFIG_FILE") else []
    files = [*named, Path.home() / ".config/pip/pip.conf", Path.home() / ".pip/pip.conf", Path("/etc/pip.conf")]
    return [(file, SETTINGS, "ro") for file in files if file.is_file()][:1]


def installed():
    """The folder that has ruff in bin, which is made first if it is not in the cache."""

    def install(path):
        path.mkdir()
        (path / "requirements").write_text(f"ruff=={RUFF} --hash=sha256:{SHA256}\n")
        command = [
            *("pip", "install", "--no-cache-dir", "--disable-pip-version-check", "--root-user-action=ignore"),
            *("--no-deps", "--only-binary", ":all:", "--require-hashes"),
            *("--target", INSTALLED, "--requirement", f"{INSTALLED}/requirements"),
        ]
        passed = {name: os.environ[name] for name in PASSED if name in os.environ}
        # The host's settings may name its own CA bundle, which is at this place in the toolroot.
        environment = {**passed, "PIP_CONFIG_FILE": SETTINGS, "PIP_CERT": "/etc/ssl/certs/ca-certificates.crt"}
        with steps.step("installing ruff") as log:
            binds = [(path, INSTALLED, "rw"), *settings()]
            steps.run(layer.LINTING.enter(command, binds, environment), log, "Installing ruff")

    return cache.make(cache.folder("ruff") / RUFF, "ruff", 0.1, install)


def ruff(log, names, *arguments):
    """Runs ruff on files of the clone, by pyproject.toml."""
    with kept("ruff") as folder:
        binds = [(installed(), INSTALLED, "ro"), (folder, KEPT, "rw")]
        run(log, f"ruff {arguments[0]}", [f"{INSTALLED}/bin/ruff", *arguments], names, binds, {"RUFF_CACHE_DIR": KEPT})


def mypy(log):
    """Runs mypy on the files that pyproject.toml names."""
    with kept("mypy") as folder:
        run(log, "mypy", ["mypy", f"--cache-dir={KEPT}"], [], [(folder, KEPT, "rw")])


def shellcheck(log, names, *arguments):
    """Runs shellcheck on files of the clone, by .shellcheckrc."""
    run(log, "shellcheck", ["shellcheck", "--format=gcc", *arguments], names)


def codespell(log, names):
    """Runs codespell on files of the clone, by pyproject.toml."""
    run(log, "codespell", ["codespell"], names)


def scripts():
    """The folder with checkpatch and its files, which is made first if it is not in the cache."""

    def unpack(path):
        path.mkdir()
        names = " ".join(f"'*/scripts/{name}'" for name in SCRIPT_FILES)
        command = f"tar -x -f {toolroot.source(toolroot.SERIES)} -C {SCRIPTS} --strip-components=2 --wildcards {names}"
        with steps.step("unpacking checkpatch") as log:
            steps.run(build.in_toolroot(["sh", "-c", command], [(path, SCRIPTS, "rw")]), log, "Unpacking checkpatch")

    key = cache.key(*toolroot.versions(f"linux-source-{toolroot.SERIES}"), *SCRIPT_FILES)
    return cache.make(cache.folder("checkpatch") / key, "checkpatch", 0.1, unpack)


def checkpatch(log, names):
    """Runs checkpatch on files of the clone; returns its messages, as matches of FOUND."""
    command = [f"{SCRIPTS}/checkpatch.pl", "--no-tree", "--strict", "--terse", "--show-types", "--no-summary", "--file"]
    inside = build.in_toolroot(["env", "--chdir=/efa-rs", *command, *names], [(scripts(), SCRIPTS, "ro")])
    begin = log.tell()
    status = steps.call(inside, stdout=log, stderr=subprocess.STDOUT)
    with open(log.name, errors="replace") as file:
        file.seek(begin)
        said = file.read()
    found = list(FOUND.finditer(said))
    if status and not found:
        raise Failure(f"{steps.tail(log.name)}\ncheckpatch failed: see above, all of it is in {log.name}.")
    return found


@contextlib.contextmanager
def kept(program):
    """Yields the folder of a program's cache for the clone's files, which is locked."""
    with cache.lock(f"{program}-{cache.key(str(cache.CLONE))}"):
        yield cache.clone_folder(program)


def run(log, what, command, names, binds=(), environment=None):
    """Runs a program in the clone's folder on files of it. Their names are in a file, to keep the command in the log short."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "names").write_text("".join(f"{name}\n" for name in names))
        over = ["xargs", "--delimiter=\\n", f"--arg-file={NAMES}/names", *command]
        binds = [(folder, NAMES, "ro"), *binds]
        inside = layer.LINTING.enter(["env", "--chdir=/efa-rs", "NO_COLOR=1", *over], binds, environment)
        steps.run(inside, log, what)
