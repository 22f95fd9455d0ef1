# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What the files of packages say: versions, the oldest kernel, the address for bugs, documents; and scripts of the emulator's package."""

import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from stand_ins import CLONE, StandIns

MINUTES = 1
TIER = "check"
SERIES = re.findall(r"^([\d.]+) ", (CLONE / "tools/series").read_text(), re.MULTILINE)[0]
# Files that name the oldest supported kernel, and patterns that match it.
FLOOR = {
    "dkms.conf": r'^BUILD_EXCLUSIVE_KERNEL_MIN="(.*)"',
    "dkms/advise": r'older "\$number" (\S+);|Linux (\S+) or newer',
    "debian/control": r"linux-source-([\d.]+),|Linux (\S+) or newer",
    "rpm/efa-rs-dkms.spec": r"kernel-devel >= (\S+)|Linux (\S+) or newer",
    "README.md": r"Linux (\S+) or newer",
    "Documentation/install.md": r"Linux (\S+) or newer",
    "CONTRIBUTING.md": r"Linux (\S+) is the oldest kernel",
}
# Files that have the version, and patterns that match it.
VERSIONS = {
    "CHANGELOG.md": r"^## (\S+) ",
    "debian/changelog": r"^efa-rs \((\S+)\)",
    "rpm/efa-rs-dkms.spec": r"^Version: +(\S+)",
}
# The same for the emulator's.
EMULATOR_VERSIONS = {
    "emulator/CHANGELOG.md": r"^## (\S+) ",
    "emulator/Cargo.toml": r'^version = "(\S+)"',
    "Documentation/emulator-vmm.md": r"efa-emu_([\d.]+)_",
}
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|#)([^)#\s]+)(?:#[^)]*)?\)")


def read(name):
    return (CLONE / name).read_text()


def dkms(script, *arguments):
    """Runs a script of bash with the settings of DKMS."""
    command = ["bash", "-c", f". {CLONE}/dkms.conf; {script}", "bash", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_versions_agree():
    version = ".".join(re.findall(r"^#define EFA_VERSION_(?:MAJOR|MINOR|SUBMINOR) (\d+)$", read("efa_rs/ffi/version.h"), re.MULTILINE))
    found = {name: re.findall(pattern, read(name), re.MULTILINE)[0] for name, pattern in VERSIONS.items()}
    assert found == dict.fromkeys(VERSIONS, version)
    assert dkms('echo "$PACKAGE_VERSION"').strip() == version
    assert len({re.findall(pattern, read(name), re.MULTILINE)[0] for name, pattern in EMULATOR_VERSIONS.items()}) == 1
    dates = re.findall(r"^## \S+ \((.*)\)", read("CHANGELOG.md"), re.MULTILINE)[0]
    for name, pattern in (("debian/changelog", r"  (\w+, .*)$"), ("rpm/efa-rs-dkms.spec", r"^\* (\w+ \w+ \d+ \d+) ")):
        found = re.findall(pattern, read(name), re.MULTILINE)[0]
        assert subprocess.run(["date", "-u", "-d", found, "+%F"], capture_output=True, text=True, check=True).stdout.strip() == dates, name


def test_programs_take_the_module_for_its_interface():
    interface = re.findall(r'^#define EFA_INTERFACE "(.+)"$', read("efa_rs/ffi/version.h"), re.MULTILINE)[0]
    ours = [f"{interface}-rs{number}" for number in (dkms('echo "$PACKAGE_VERSION"').strip(), "1.9.0", "1.10.0")]
    wanted = ["2.12.1", "3.3.0", *ours, "3.4.0"]
    assert subprocess.run(["sort", "-V"], input="\n".join(wanted), capture_output=True, text=True, check=True).stdout.split() == wanted
    assert f"`{ours[0]}`" in read("Documentation/other-drivers.md")


def test_dkms_builds_for_both_architectures():
    names = ["x86_64", "aarch64", "aarch64_be", "ppc64le"]
    assert dkms("for name; do [[ $name =~ $BUILD_EXCLUSIVE_ARCH ]] && echo $name; done; :", *names).split() == names[:2]


@pytest.mark.parametrize("name", FLOOR)
def test_the_oldest_kernel(name):
    found = re.finditer(FLOOR[name], read(name), re.MULTILINE)
    assert {number for place in found for number in place.groups() if number} == {SERIES}


@pytest.mark.parametrize(("architecture", "tested"), [("x86-64", ["cloud-amd64"]), ("arm64", ["cloud-arm64", "arm64-16k"])])
def test_guide_lists_the_flavours_that_suites_run(architecture, tested):
    [row] = re.findall(rf"^\| {architecture} \| (.*) \|$", read("Documentation/install.md"), re.MULTILINE)
    kernels, ran, missing = (re.findall(r"`((?:cloud-)?a\w+64(?:-16k)?)`", column) for column in row.split("|"))
    assert list(dict.fromkeys(ran)) == tested and not [name for name in kernels if name not in ran + missing], (kernels, ran, missing)


def test_rpm_says_itself_why_a_kernel_is_too_old():
    """For an unmet dependency, dnf would print only the name of a package."""
    assert re.findall(r"^(\w+): +kernel-devel", read("rpm/efa-rs-dkms.spec"), re.MULTILINE) == ["Recommends"]


# The emulator's package takes minutes to build.
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.needs(kind), pytest.mark.tier(tier)])
        for kind, tier in (("deb", "check"), ("rpm", "check"), ("emulator-deb", "named"))
    ],
)
def test_links_of_documents_lead_to_files_of_the_package(kind, tmp_path):
    """When a package is built, lintian or rpmlint check the rest."""
    unpack = "dpkg-deb --extract * $0" if kind.endswith("deb") else "rpm2cpio * | (cd $0 && cpio --extract --make-directories --quiet)"
    subprocess.run(["sh", "-ec", unpack, str(tmp_path)], cwd=f"/run/built/{kind}", check=True)
    pages = sorted(tmp_path.glob("usr/share/doc/*/*.md"))
    assert "install.md" in [page.name for page in pages]
    links = [(page, target) for page in pages for target in LINK.findall(page.read_text())]
    assert not [(page.name, target) for page, target in links if not (page.parent / target).exists()]


def contents(tarball):
    """Returns the texts of a source tarball, which has no trace of the packager."""
    files = {}
    with tarfile.open(tarball) as tar:
        for entry in tar.getmembers():
            assert (entry.uid, entry.gid, entry.uname) == (0, 0, "root") and entry.mode in (0o644, 0o755, 0o777), entry
            content = tar.extractfile(entry) if entry.isfile() else None
            files[entry.name.partition("/")[2]] = content.read().decode(errors="replace") if content else ""
    return files


def dist(folder, address):
    """Makes the source tarball with another address for bugs."""
    settings = {**os.environ, "OUT": str(folder), "EFA_BUGS": address}
    return subprocess.run(["tools/package.sh", "dist"], cwd=CLONE, env=settings, capture_output=True, text=True, check=False)


def places(files):
    """Returns the address for bugs in each file that has one."""
    return {
        "dkms/bugs": files["dkms/bugs"].strip(),
        "control": re.findall(r"^Bugs: (.*)$", files["debian/control"], re.MULTILINE)[0],
        "spec": re.findall(r"^BugURL: +(.*)$", files["rpm/efa-rs-dkms.spec"], re.MULTILINE)[0].replace("%%", "%"),
        "guide": re.findall(r"send it to <(.*?)>", files["Documentation/install.md"])[0],
    }


@pytest.mark.needs("dist")
def test_tarball_names_one_address_for_bugs(tmp_path):
    """It is that of the clone, or that of BUGS. Maintainers have no other that leads nowhere."""
    default = read("dkms/bugs").strip()
    files = contents(next(Path("/run/built/dist").glob("*.tar.xz")))
    own = set(places(files).values())
    assert len(own) == 1 and own <= {default, os.environ.get("EFA_BUGS")}
    assert re.search(r"(?m)^Maintainer: [^@<]+ <[^@<>]+@[^@<>]+>$", files["debian/control"])
    assert ".invalid" not in files["debian/control"].replace(default, "")
    for text in ("tracker.example", "https://tracker.example/a b", "https:"):
        assert f"BUGS={text} is not an address" in dist(tmp_path, text).stderr
    assert not list(tmp_path.iterdir())
    address = r"https://tracker.example/efa%20rs?a=1&b=\|"
    assert dist(tmp_path, address).returncode == 0
    files = contents(next(tmp_path.iterdir()))
    assert set(places(files).values()) == {address}
    assert not [name for name, text in files.items() if default in text]


def test_packages_have_the_address():
    for name in ("debian/rules", "rpm/efa-rs-dkms.spec"):
        assert re.search(r"install .*dkms/bugs", read(name))


def test_efa_report_says_the_address(tmp_path):
    for name in ("efa-report", "bugs"):
        shutil.copy(CLONE / "dkms" / name, tmp_path)
    archive = f"{tmp_path}/report.tar.gz"
    done = subprocess.run([f"{tmp_path}/efa-report", "--output", archive], capture_output=True, text=True, check=False)
    assert done.stdout == f"{archive}\n"
    assert f" {read('dkms/bugs').strip()}," in done.stderr.splitlines()[-1]


def test_efa_report_says_in_a_line_why_it_cannot_write():
    command = [f"{CLONE}/dkms/efa-report", "--output", "/nowhere/report.tar.gz"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if "Not run as root" not in line]
    assert done.returncode == 1 and len(lines) == 1, lines
    assert "/nowhere/report.tar.gz could not be written (No such file or directory): choose another place" in lines[0]


class TestEmulatorScripts(StandIns):
    """The maintainer scripts of the emulator's package, on a stand-in for a machine with instances of its unit."""

    def setUp(self):
        super().setUp()
        for name in ("systemctl", "deb-systemd-invoke"):
            self.program(name, f'echo "{name} $*" >>"$ROOT/done"')
        self.write("run/systemd/system/unit", "")
        self.links = [self.root / "etc/systemd/system" / name for name in ("multi-user.target.wants/efa-emu@lab.service", "own.service")]
        for link in self.links:
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to("/usr/lib/systemd/system/efa-emu@.service")

    def does(self, name, arguments, *commands):
        """Fails unless that script runs only these commands."""
        done = self.write("done", "")
        folders = [place for place in ("/run/systemd", "/etc/systemd") if place in read(f"debian/efa-emu.{name}")]
        subprocess.run([self.script(f"debian/efa-emu.{name}", *folders), *arguments], env=self.environment(), check=True)
        self.assertEqual(done.read_text().splitlines(), list(commands))

    def remain(self):
        return [link.name for link in self.links if link.is_symlink()]

    def test_an_upgrade_leaves_instances_alone(self):
        self.does("prerm", ["upgrade", "0.2.0"])
        self.does("postrm", ["upgrade", "0.2.0"], "systemctl daemon-reload")
        self.does("postinst", ["configure", "0.1.0"], "systemctl daemon-reload")
        self.assertEqual(self.remain(), ["efa-emu@lab.service", "own.service"])

    def test_a_removal_stops_them(self):
        self.does("prerm", ["remove"], "deb-systemd-invoke stop efa-emu@*.service")
        self.does("postrm", ["remove"], "systemctl daemon-reload")
        self.assertEqual(self.remain(), ["efa-emu@lab.service", "own.service"])

    def test_a_purge_disables_them(self):
        self.does("postrm", ["purge"], "systemctl daemon-reload")
        self.assertEqual(self.remain(), ["own.service"])

    def test_a_machine_without_systemd(self):
        shutil.rmtree(self.root / "run")
        self.does("prerm", ["remove"])
        self.does("postinst", ["configure"])
        shutil.rmtree(self.root / "etc")
        self.does("postrm", ["purge"])
