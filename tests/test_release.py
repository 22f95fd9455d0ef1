# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What `make package` leaves: its files, the same when they are built again, programs and image of both architectures, installation."""

import json
import os
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
from conftest import BUILT, CLONE, succeeds

MINUTES = 30
TIER = "named"
VERSION = re.findall(r"^## (\S+) ", (CLONE / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
EMULATOR = re.findall(r"^## (\S+) ", (CLONE / "emulator/CHANGELOG.md").read_text(), re.MULTILINE)[0]
MACHINES = ("x86_64", "aarch64")
FILES = {
    "SHA256SUMS",
    f"efa-rs-{VERSION}.tar.xz",
    f"efa-rs-dkms_{VERSION}_all.deb",
    f"efa-rs-dkms-{VERSION}-1.noarch.rpm",
    f"efa-emu_{EMULATOR}_amd64.deb",
    *(f"efa-emu-{EMULATOR}{rest}" for rest in (".tar.xz", ".cdx.json", "-third-party.txt")),
    *(f"efa-emu-{EMULATOR}-linux-{machine}" for machine in MACHINES),
    *(f"efa-rs{of}.{kind}" for of in ("", "-arm64") for kind in ("oci.tar", "cdx.json")),
}
# Bills of materials, and something that each of them names.
BILLS = {f"efa-emu-{EMULATOR}.cdx.json": "serde", "efa-rs.cdx.json": "qemu-system-x86", "efa-rs-arm64.cdx.json": "qemu-system-arm"}
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
for file in sys.argv[1:]:
    assert (error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(file).read())) is None, (file, error)
"""
# It prints its version, serves a device until a signal, and then removes its sockets.
INSTALLED_WORKS = """
    efa-emu --version
    efa-emu --device socket=efa.sock --control control &
    for attempt in $(seq 100); do
        ! efa-emu ctl control '{"command":"devices"}' || break
        sleep 0.1
    done
    test -S efa.sock
    efa-emu ctl control '{"command":"hello","protocol":1}'
    kill $!
    wait $! || true
    test ! -e efa.sock
"""
# Programs of the image for arm64, and words that they print.
STARTED = {
    "usr/bin/qemu-system-aarch64 --version": "QEMU emulator version",
    "usr/lib/efa-rs/emulator/efa-emu --version": f"efa-emu {EMULATOR}",
    "usr/libexec/virtiofsd --version": "virtiofsd",
    "usr/bin/python3 /efa-rs/image/hosts.py run --help": "--instance",
    "usr/bin/ssh -V": "OpenSSH",
    "usr/bin/fi_info --version": "libfabric",
    "usr/bin/mpirun --version": "Open MPI",
}


def layer(name, *words, **options):
    """Runs a program in the root with the packages of a layer."""
    return succeeds([CLONE / "tools/layer", BUILT / name, *words], **options)


@pytest.mark.needs("release")
def test_files():
    assert {file.name for file in (BUILT / "release").iterdir() if not file.name.startswith(".")} == FILES
    succeeds(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=BUILT / "release")
    assert len((BUILT / "release/SHA256SUMS").read_text().splitlines()) == len(FILES) - 1


@pytest.mark.needs("release", "image-tools")
def test_bills():
    files = [BUILT / "release" / name for name in BILLS]
    layer("image-tools", "python3", "-c", VALIDATE, *files)
    for file in files:
        named = {component["name"] for component in json.loads(file.read_text())["components"]}
        assert BILLS[file.name] in named, (file, sorted(named))


@pytest.mark.parametrize("machine", [pytest.param(machine, marks=pytest.mark.needs(f"emulator-release-{machine}")) for machine in MACHINES])
def test_static_program(machine):
    program = BUILT / f"emulator-release-{machine}/efa-emu"
    assert "INTERP" not in succeeds(["readelf", "--program-headers", "--wide", program])
    command = [program, "--version"]
    said = layer("arm64", "qemu-aarch64", *command) if machine == "aarch64" else succeeds(command)
    assert said == f"efa-emu {EMULATOR}\n"


@pytest.mark.needs("emulator-dist")
def test_cargo_install(tmp_path):
    """By the tarball's own crates, as there is no network, and this cargo has none. Without optimisation, which takes minutes."""
    succeeds(["tar", "-x", "-f", BUILT / f"emulator-dist/efa-emu-{EMULATOR}.tar.xz", "-C", tmp_path])
    target, path = f"{os.environ['EFA_KEEP']}/installed", f"{tmp_path}/bin:{os.environ['PATH']}"
    settings = {"CARGO_HOME": f"{tmp_path}/cargo", "CARGO_TARGET_DIR": target, "PATH": path}
    command = ["cargo", "install", "--debug", "--locked", "--path", f"efa-emu-{EMULATOR}/emulator/efa-emu", "--root", tmp_path]
    for one in (command, ["timeout", "120", "sh", "-euxc", INSTALLED_WORKS]):
        succeeds(one, cwd=tmp_path, env={**os.environ, **settings})


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.needs(kind), pytest.mark.tier(tier)])
        for tier, kinds in {"all": ("dist", "deb", "rpm"), "named": ("emulator-dist", "emulator-deb", "emulator-release-x86_64")}.items()
        for kind in kinds
    ],
)
def test_is_reproducible(kind):
    """Another user, host, folder, time zone and umask give the same bytes; for the driver's packages, another architecture, too."""
    with tempfile.TemporaryDirectory(dir="/tmp") as out:
        succeeds(["tools/package.sh", "--elsewhere", kind], cwd=CLONE, env={**os.environ, "OUT": out})
        same(Path(out), BUILT / kind)


@pytest.mark.needs("image-tools", "image", "image-arm64")
@pytest.mark.parametrize(("name", "architecture"), [("image", "amd64"), ("image-arm64", "arm64")])
def test_image_is_reproducible(name, architecture, tmp_path):
    command = 'hostname elsewhere; umask 077; exec image/build.py "$0" "$1"'
    layer("image-tools", "unshare", "--uts", "sh", "-ec", command, tmp_path, architecture, cwd=CLONE, env={**os.environ, "TZ": "XYZ-13"})
    same(tmp_path, BUILT / name)


def same(folder, other):
    files = sorted(file.name for file in folder.iterdir())
    assert files and files == sorted(file.name for file in other.iterdir() if not file.name.startswith("."))
    for file in files:
        succeeds(["cmp", folder / file, other / file])


@pytest.mark.needs("image-arm64", "arm64")
def test_programs_of_the_image_for_arm64_start(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    with tarfile.open(BUILT / "image-arm64/efa-rs-arm64.oci.tar") as archive:

        def read(name):
            file = archive.extractfile(name)
            assert file
            return file.read()

        def blob(of):
            return read(f"blobs/{of['digest'].replace(':', '/')}")

        [manifest] = json.loads(read("index.json"))["manifests"]
        described = json.loads(blob(manifest))
        assert json.loads(blob(described["config"]))["architecture"] == "arm64"
        for part in described["layers"]:
            subprocess.run(["tar", "-x", "-C", root], input=blob(part), check=True)
    for words, said in STARTED.items():
        program, *arguments = words.split()
        assert said in layer("arm64", "qemu-aarch64", "-L", root, root / program, *arguments), words
