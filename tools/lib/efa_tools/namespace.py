# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Runs programs as root of namespaces of their own: nothing is mounted on, or changed in, the host.

Root needs a mount namespace. An ordinary user also needs a user namespace, in which the user is root and the user's
subordinate ids are all other users.
"""

import functools
import os
import pwd
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .failure import Failure

TOOLS = Path(__file__).resolve().parents[2]

# Variables of the host's environment that programs in the toolroot get, for access to the network.
PASSED = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
PASSED_PREFIXES = ("CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTRIES_", "CARGO_REGISTRY_", "CARGO_SOURCE_")


@functools.cache
def unshare():
    """The command that makes the namespaces."""
    require("unshare", "util-linux")
    # The processes end with this program. Otherwise they could not be distinguished from a later run's.
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child"]
    user = pwd.getpwuid(os.geteuid()).pw_name
    if os.geteuid() != 0:
        require("newuidmap", "uidmap")
        for file in ("/etc/subuid", "/etc/subgid"):
            if not has_subordinate_ids(file, user):
                raise Failure(
                    f"{file} gives the user {user} no subordinate ids, which a Debian root needs:"
                    f" ask root to run 'usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}'."
                )
        command += ["--user", "--map-root-user", "--map-auto"]
    probe = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        allow = (
            "run in a machine or container that has CAP_SYS_ADMIN."
            if os.geteuid() == 0
            else "run as root, or allow them (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone or"
            " kernel.apparmor_restrict_unprivileged_userns)."
        )
        raise Failure(f"This system does not let the user {user} make namespaces ({probe.stderr.strip()}): {allow}")
    return command


def has_subordinate_ids(file, user):
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return False
    return any(line.split(":")[0] in (user, str(os.geteuid())) for line in lines)


def require(program, package):
    """Ensures that the host has PROGRAM. As root, this installs the package. Otherwise the error names the package."""
    if shutil.which(program):
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-q"], stdout=subprocess.DEVNULL, check=False)
        install = ["apt-get", "install", "--yes", "-q", "--no-install-recommends", package]
        subprocess.run(install, stdout=subprocess.DEVNULL, env=environment, check=False)
    if not shutil.which(program):
        raise Failure(f"The program {program} is missing: install the package {package}.")


@dataclass
class Overlay:
    """A root of several layers, the uppermost first, which is mounted at MOUNT. Writes are in UPPER, if there is one."""

    lowers: list[Path]
    mount: Path
    upper: Path | None = None
    work: Path | None = None
    # Whether it is mounted in a user namespace, or has to show changes in UPPER from a mount in one.
    user: bool = False

    def options(self):
        """The options of its mount."""
        options = "lowerdir=" + ":".join(map(str, self.lowers))
        if self.upper:
            options += f",upperdir={self.upper},workdir={self.work}"
        # By default, an overlay uses extended attributes that only root of the initial user namespace can access.
        return f"{options},userxattr" if self.user or os.geteuid() != 0 else options


def emulating():
    """The command that makes the namespaces for programs of another architecture.

    One of them is a user namespace. Since Linux 6.7 it has a binfmt_misc of its own, so that the host's is unchanged.
    """
    return [sys.executable, str(Path(__file__).with_name("mapped.py"))] * (os.geteuid() == 0) + unshare()


def enter(root, command, binds=(), environment=None, emulator=None):
    """The command line that runs COMMAND with ROOT, a folder or an Overlay, as its root.

    BINDS are (source, target, "ro" or "rw"). A folder is read-only. EMULATOR, a file, runs programs of arm64 in there.
    """
    passed = {name: value for name, value in os.environ.items() if name in PASSED or name.startswith(PASSED_PREFIXES)}
    variables = {
        **passed,
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        **(environment or {}),
    }
    binds = [*binds, *certificates()]
    place = ("--overlay", root.options(), str(root.mount)) if isinstance(root, Overlay) else (str(root),)
    return [
        *(emulating() if emulator else unshare()),
        *("sh", str(TOOLS / "enter.sh"), *(["--emulator", str(emulator)] if emulator else []), *place),
        *(f"{source}:{target}:{mode}" for source, target, mode in binds),
        *("--", "env", "-i"),
        *(f"{name}={value}" for name, value in variables.items()),
        *command,
    ]


def certificates():
    """Returns the mount of the host's CA bundle. Behind a proxy that inspects TLS, it has the proxy's certificate."""
    bundle = Path(os.environ.get("SSL_CERT_FILE") or "/etc/ssl/certs/ca-certificates.crt")
    return [(bundle, "/etc/ssl/certs/ca-certificates.crt", "ro")] if bundle.is_file() else []


def remove(path):
    """Removes a tree that may have been made by enter(): its files can belong to subordinate ids."""
    if path.exists():
        result = subprocess.run([*unshare(), "rm", "-rf", "--one-file-system", str(path)], capture_output=True, text=True, check=False)
        if result.returncode:
            raise Failure(f"{path} cannot be removed ({result.stderr.strip()}): remove it by hand.")
