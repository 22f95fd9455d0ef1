#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Makes the image: packages of this root with what they need, and the kernel, module, emulator and tools of guests.

usage: image/build.py FOLDER amd64|arm64    makes FOLDER/efa-rs.oci.tar or efa-rs-arm64.oci.tar, for podman load, docker load or
                                            skopeo, and its bill of materials. Packages for arm64 are those of the guests' root.
"""

import os
import re
import shutil
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path

sys.dont_write_bytecode = True
CLONE, BUILT = Path("/efa-rs"), Path("/run/built")
# What hosts the guests, and then what runs in them.
PACKAGES = """
    qemu-system-x86 virtiofsd python3 openssh-client libnss-wrapper
    openssh-server busybox-static kmod udev iproute2 pciutils procps util-linux xz-utils make
    rdma-core ibverbs-utils python3-pyverbs perftest libfabric-bin openmpi-bin
    python3-pytest python3-pytest-xdist python3-yaml python3-junitparser python3-retrying
""".split()
# Files that scripts of packages have made.
MADE = ("etc/passwd", "etc/group", "etc/nsswitch.conf", "etc/ld.so.cache", "etc/alternatives", "etc/ssh/sshd_config")
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
PROGRAM = "/efa-rs/image/hosts.py"


def said(*words, **options):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def packages():
    """Returns the names of all packages that the image has."""
    essential = re.findall(r"^(\S+) yes$", said("dpkg-query", "-W", "-f", "${Package} ${Essential}\n"), re.MULTILINE)
    kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    found = said("apt-cache", "depends", "--recurse", "--installed", *(f"--no-{kind}" for kind in kinds), *PACKAGES, *essential)
    installed = set(said("dpkg-query", "-W", "-f", "${Package}\n").split())
    return sorted({line for line in found.splitlines() if re.match(r"[a-z0-9]", line)} & installed)


def files(names):
    """Returns the paths of packages and of what their scripts have made, without the first slash."""
    listed = {Path(line) for line in said("dpkg-query", "-L", *names).splitlines() if line.startswith("/")}
    # A path in a folder that is a link now, such as /bin, is one in the folder that it links to.
    real = {path.parent.resolve() / path.name for path in listed if os.path.lexists(path)}
    made = {path for name in MADE for path in [Path("/", name), *Path("/", name).glob("*")]}
    return sorted(str(path)[1:] for path in real | made if str(path) != "/")


def fill(root, architecture):
    """Makes the root of the image."""
    modules = Path("/usr/lib/modules")
    if architecture == "arm64":
        subprocess.run(["rsync", "-a", f"{BUILT}/arm64-userland/root/", root], check=True)
        modules = BUILT / "arm64/layer/usr/lib/modules"
    else:
        names = packages()
        subprocess.run(["rsync", "-a", "--files-from=-", "/", root], input="\n".join(files(names)), text=True, check=True)
        # The list of the software.
        parent(root / "var/lib/dpkg/status").write_text(said("dpkg-query", "--status", *names))
    release = next(path for path in modules.iterdir() if path.name.endswith(f"-cloud-{architecture}"))
    shutil.copytree(release, root / "usr/lib/modules" / release.name, symlinks=True, ignore=shutil.ignore_patterns("build", "source"))
    for name in (f"emulator-release-{MACHINES[architecture]}", f"rust-cloud-{architecture}", f"kernel-cloud-{architecture}"):
        shutil.copytree(BUILT / name, root / "usr/lib/efa-rs" / name.partition("-release")[0])
    for name in ("tools", "image", "tests/traffic.py", "LICENSE"):
        (shutil.copytree if (CLONE / name).is_dir() else shutil.copy)(CLONE / name, parent(root / "efa-rs" / name))
    # Whatever the umask of the clone's user is.
    subprocess.run(["chmod", "-R", "u=rwX,go=rX", root / "efa-rs", root / "usr/lib/efa-rs"], check=True)
    for name in ("cache", "share", "proc", "sys", "dev", "run", "tmp", "mnt"):
        (root / name).mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    for name in ("hosts", "hostname", "resolv.conf"):
        # What a container mounts there, also if its root is read-only.
        (root / "etc" / name).touch()


def parent(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def main(folder, architecture):
    os.umask(0o022)
    name = "efa-rs" if architecture == "amd64" else f"efa-rs-{architecture}"
    time = os.environ.get("SOURCE_DATE_EPOCH", "0")
    storage = ["buildah", "--storage-driver", "vfs", "--root", f"{folder}/storage", "--runroot", "/run/containers"]
    container = said(*storage, "from", "--arch", architecture, "scratch").strip()
    root = Path(said(*storage, "mount", container).strip())
    fill(root, architecture)
    bill = ["debsbom", "generate", "--sbom-type", "cdx", "--root", root, "--distro-name", name, "--distro-arch", architecture]
    bill += ["--timestamp", datetime.fromtimestamp(int(time), UTC).isoformat(), "--out", folder / name]
    bill += ["--cdx-serialnumber", str(uuid.uuid5(uuid.NAMESPACE_OID, (root / "var/lib/dpkg/status").read_text()))]
    subprocess.run(bill, check=True)
    labels = {"title": "EFA without EC2", "licenses": "GPL-2.0 OR BSD-2-Clause"}
    words = [word for name, value in labels.items() for word in ("--label", f"org.opencontainers.image.{name}={value}")]
    words += ["--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "--env", "LANG=C.UTF-8"]
    subprocess.run([*storage, "config", *words, "--entrypoint", f'["{PROGRAM}"]', "--workingdir", "/share", container], check=True)
    subprocess.run([*storage, "commit", "--quiet", "--timestamp", time, container, f"oci:{folder}/layout:efa-rs"], check=True)
    # buildah's own archives have the present time.
    pack = ["tar", "-c", "--sort=name", "--mode=u=rwX,go=rX", "--owner=root:0", "--group=root:0", f"--mtime=@{time}"]
    subprocess.run([*pack, "-f", folder / f"{name}.oci.tar", "-C", folder / "layout", "oci-layout", "index.json", "blobs"], check=True)
    subprocess.run([*storage, "rm", container], check=True, stdout=subprocess.DEVNULL)
    for made in ("storage", "layout"):
        shutil.rmtree(folder / made)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
