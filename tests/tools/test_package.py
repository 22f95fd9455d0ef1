# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import tomllib
import unittest
from pathlib import Path
from unittest import mock

import support
from efa_tools import arm64, check_arm64, install, machine, package, toolroot
from efa_tools.failure import Failure, match_in
from stand_ins import StandIns

VERSION = """#define EFA_VERSION_MAJOR 1
#define EFA_VERSION_MINOR 20
#define EFA_VERSION_SUBMINOR 3
#define EFA_VERSION EFA_STRING(EFA_VERSION_MAJOR)
"""
CHANGELOG = f"""# Changelog

Text.

## {package.version()} (2026-02-03)

- One
  change.
- Another.

## 0.0.1 (2026-01-31)

- The first.
"""


class Version(unittest.TestCase):
    def test_is_that_of_the_module(self):
        self.assertEqual(package.version(VERSION), "1.20.3")

    def test_programs_take_that_of_the_module_for_the_interface(self):
        ours = [package.module_version(number) for number in (package.version(), "1.9.0", "1.10.0")]
        wanted = ["2.12.1", "3.3.0", *ours, "3.4.0"]
        output = subprocess.run(["sort", "-V"], input="\n".join(wanted), capture_output=True, text=True, check=True).stdout
        self.assertEqual(output.split(), wanted)
        self.assertIn(f"`{ours[0]}`", (support.CLONE / "Documentation/other-drivers.md").read_text())

    def test_a_file_without_it_is_named(self):
        with self.assertRaisesRegex(Failure, "^debian/control has nothing that matches "):
            match_in(machine.PARAGRAPH, "Source: x\n", "debian/control")

    def test_dkms_takes_it_from_there(self):
        script = f'. {support.CLONE}/dkms.conf && echo "$PACKAGE_VERSION"'
        output = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False).stdout
        self.assertEqual(output.strip(), package.version())

    def test_dkms_builds_for_both_architectures(self):
        script = f". {support.CLONE}/dkms.conf; for name; do [[ $name =~ $BUILD_EXCLUSIVE_ARCH ]] && echo $name; done"
        names = ["x86_64", "aarch64", "aarch64_be", "ppc64le"]
        output = subprocess.run(["bash", "-c", script, "bash", *names], capture_output=True, text=True, check=False).stdout
        self.assertEqual(output.split(), names[:2])

    def test_the_changelog_begins_with_it(self):
        self.assertEqual(package.releases()[0][0], package.version())
        with self.assertRaisesRegex(package.Failure, "CHANGELOG.md does not begin with version"):
            package.releases(CHANGELOG.replace(package.version(), "99.0.0"))


class Emulator(unittest.TestCase):
    def test_has_the_version_of_its_package(self):
        manifest = tomllib.loads((support.CLONE / "emulator/Cargo.toml").read_text())
        self.assertEqual(manifest["workspace"]["package"]["version"], package.version())

    def test_the_guide_names_its_package(self):
        for name in set(re.findall(r"efa-emu_[\w.]+deb", (support.CLONE / install.GUIDE).read_text())):
            self.assertEqual(name, f"efa-emu_{package.version()}_amd64.deb")


class EmulatorScripts(StandIns):
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
        done = self.root / "done"
        done.write_text("")
        places = [place for place in ("/run/systemd", "/etc/systemd") if place in (support.CLONE / f"debian/efa-emu.{name}").read_text()]
        subprocess.run([self.script(f"debian/efa-emu.{name}", *places), *arguments], env=self.environment(), check=True)
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


class Floor(unittest.TestCase):
    def test_all_name_the_same(self):
        for name, pattern in FLOOR.items():
            with self.subTest(name):
                places = re.finditer(pattern, (support.CLONE / name).read_text(), re.MULTILINE)
                self.assertEqual({place[place.lastindex] for place in places}, {toolroot.SERIES})


class Guide(unittest.TestCase):
    """The table of Debian's kernels lists those flavours as run that the suites run."""

    def row(self, architecture, flavours):
        """Returns the flavours in Debian's row: all, those that were run, and those with parts that were not run."""
        text = (support.CLONE / "Documentation/install.md").read_text()
        row = re.search(rf"^\| {architecture} \| (.*`{flavours[0]}`.*) \|$", text, re.MULTILINE)[1]
        known = "|".join(sorted(flavours, key=len, reverse=True))
        kernel, ran, missing = (re.findall(rf"`({known})`", column) for column in row.split("|"))
        return kernel, ran, missing

    def test_flavours_of_x86(self):
        kernel, ran, missing = self.row("x86-64", toolroot.FLAVOURS)
        self.assertEqual(kernel, list(toolroot.FLAVOURS))
        self.assertEqual(ran + missing, list(toolroot.FLAVOURS))

    def test_flavours_of_arm64(self):
        kernel, ran, missing = self.row("arm64", arm64.FLAVOURS)
        in_guests = {flavour for _, flavour in check_arm64.KSELFTESTS}
        self.assertEqual(kernel, list(arm64.FLAVOURS))
        self.assertEqual((set(ran), set(missing)), (in_guests, set(arm64.FLAVOURS) - in_guests))


class Changelog(unittest.TestCase):
    def setUp(self):
        patcher = mock.patch.object(package, "releases", lambda: releases)
        releases = package.releases(CHANGELOG)
        patcher.start()
        self.addCleanup(patcher.stop)

    def test_of_debian(self):
        lines = package.debian_changelog("Me <me@there>").splitlines()
        self.assertEqual(lines[0], f"efa-rs ({package.version()}) unstable; urgency=medium")
        self.assertEqual(lines[2:4], ["  * One change.", "  * Another."])
        self.assertEqual(lines[5], " -- Me <me@there>  Tue, 03 Feb 2026 00:00:00 +0000")
        self.assertIn("efa-rs (0.0.1) unstable; urgency=medium", lines)

    def test_of_the_rpm(self):
        text = package.rpm_spec()
        self.assertIn(f"\nVersion:        {package.version()}\n", text)
        self.assertIn(f"- {package.version()}-1\n- One change.\n- Another.\n\n* Sat Jan 31 2026", text)
        self.assertNotIn("@", text.split("%changelog")[0])


class Bugs(unittest.TestCase):
    """All files name the same address for reports of bugs."""

    def setUp(self):
        self.default = (support.CLONE / package.BUGS).read_text().removesuffix("\n")
        self.enterContext(mock.patch.dict(os.environ))
        os.environ.pop("EFA_BUGS", None)

    def places(self):
        files = package.generated()
        return {
            "dkms/bugs": files["dkms/bugs"].removesuffix("\n"),
            "control": re.search(r"^Bugs: (.*)$", files["debian/control"], re.MULTILINE)[1],
            "spec": re.search(r"^BugURL: +(.*)$", files["efa-rs-dkms.spec"], re.MULTILINE)[1],
            "guide": re.search(r"send it to <(.*?)>", files["Documentation/install.md"])[1],
        }

    def test_it_is_the_clones(self):
        self.assertRegex(self.default, package.ADDRESS)
        self.assertEqual(set(self.places().values()), {self.default})

    def test_it_is_what_the_environment_says(self):
        os.environ["EFA_BUGS"] = "https://tracker.example/new?of=efa"
        self.assertEqual(set(self.places().values()), {os.environ["EFA_BUGS"]})
        self.assertFalse([name for name, text in package.generated().items() if self.default in text])

    def test_maintainers_have_no_other_that_leads_nowhere(self):
        control = package.generated()["debian/control"]
        self.assertRegex(control, r"(?m)^Maintainer: [^@<]+ <[^@<>]+@[^@<>]+>$")
        self.assertNotIn(".invalid", control.replace(self.default, ""))

    def test_a_percent_sign_is_no_macro_of_rpm(self):
        os.environ["EFA_BUGS"] = "https://tracker.example/efa%20rs"
        self.assertEqual(self.places()["spec"], "https://tracker.example/efa%%20rs")

    def test_something_else_is_refused(self):
        for text in ("tracker.example", "https://tracker.example/a b", "https:"):
            os.environ["EFA_BUGS"] = text
            with self.assertRaisesRegex(package.Failure, f"^BUGS={text} is not an address"):
                package.generated()

    def test_make_passes_it_on(self):
        command = ["make", "-s", "--eval", "show: ; @echo $$EFA_BUGS", "show", "BUGS=mailto:a@b.example"]
        shown = subprocess.run(command, cwd=support.CLONE, capture_output=True, text=True, check=False)
        self.assertEqual(shown.stdout, "mailto:a@b.example\n", shown.stderr)

    def test_packages_have_it(self):
        for name in ("debian/rules", "rpm/efa-rs-dkms.spec"):
            self.assertRegex((support.CLONE / name).read_text(), r"install .*dkms/bugs")

    def test_efa_report_says_it(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("tools/efa-report", "dkms/bugs"):
                (Path(folder) / name).parent.mkdir()
                shutil.copy(support.CLONE / name, Path(folder) / name)
            archive = f"{folder}/report.tar.gz"
            done = subprocess.run([f"{folder}/tools/efa-report", "--output", archive], capture_output=True, text=True, check=False)
        self.assertEqual(done.stdout, f"{archive}\n")
        self.assertIn(f" {self.default},", done.stderr.splitlines()[-1])

    def test_efa_report_says_in_a_line_why_it_cannot_write(self):
        command = [support.CLONE / "tools/efa-report", "--output", "/nowhere/report.tar.gz"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        lines = [line for line in done.stderr.splitlines() if "Not run as root" not in line]
        self.assertEqual(len(lines), 1, lines)
        self.assertIn("/nowhere/report.tar.gz could not be written (No such file or directory): choose another place", lines[0])


# Files that list the documents of packages, and patterns that match the lists.
DOCUMENTS = {"debian/rules": r"^guides = (.*)$", "rpm/efa-rs-dkms.spec": r"^%doc (.*)$"}


class Documents(unittest.TestCase):
    def setUp(self):
        self.tree = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.folder = self.tree / "usr/share/doc/package"
        self.folder.mkdir(parents=True)

    def test_links_of_packages_lead_to_their_files(self):
        for name, pattern in DOCUMENTS.items():
            lists = re.findall(pattern, (support.CLONE / name).read_text(), re.MULTILINE)
            pages = [page for names in lists for glob in names.split() for page in support.CLONE.glob(glob)]
            self.assertIn(support.CLONE / package.GUIDE, pages)
            shutil.rmtree(self.folder)
            self.folder.mkdir()
            for page in pages:
                shutil.copy(page, self.folder)
            with self.subTest(name):
                self.assertEqual(package.broken_links(self.tree), [])

    def test_a_link_to_a_file_that_is_not_in_the_package(self):
        page = "[a](b.md#c) [b](#d) [e](https://f.example/g) [h](../i.rs) [j](k.md)"
        (self.folder / "page.md").write_text(page)
        (self.folder / "b.md").touch()
        (self.folder / "k.md.gz").touch()
        self.assertEqual(package.broken_links(self.tree), ["page.md has ../i.rs", "page.md has k.md"])


class Rpm(unittest.TestCase):
    def test_says_itself_why_a_kernel_is_too_old(self):
        """For an unmet dependency, dnf would print only the name of a package."""
        text = (support.CLONE / "rpm/efa-rs-dkms.spec").read_text()
        self.assertEqual(re.findall(r"^(\w+): +kernel-devel", text, re.MULTILINE), ["Recommends"])


class Tarball(unittest.TestCase):
    def test_has_nothing_of_who_packs_it(self):
        buffer = io.BytesIO()
        with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=buffer, mode="w") as tar:
            script = Path(folder, "script")
            script.write_text("x")
            script.chmod(0o700)
            os.utime(script, (1, 1))
            package.add(tar, "root/script", script, 1234)
            package.add(tar, "root/text", "generated", 1234)
        entries = tarfile.open(fileobj=io.BytesIO(buffer.getvalue())).getmembers()
        found = [(entry.name, entry.mode, entry.mtime, entry.uid, entry.uname) for entry in entries]
        self.assertEqual(found, [("root/script", 0o755, 1234, 0, ""), ("root/text", 0o644, 1234, 0, "")])


class Wanted(unittest.TestCase):
    def test_packages_of_the_control_file(self):
        names = machine.wanted()
        for name in ("dkms", "rustc", "gcc-14", "ibverbs-utils", "ibverbs-providers"):
            self.assertIn(name, names)
        self.assertFalse([name for name in names if not name[0].isalpha() or name.startswith("linux")], names)


if __name__ == "__main__":
    unittest.main()
