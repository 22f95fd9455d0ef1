# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Runs DKMS's build script of the module, with stand-ins for the kernel, the compilers and make."""

import os
import re
import shutil
import subprocess

from stand_ins import CLONE, CONFIG, KERNEL, PROGRAMS, RUST_KIT, StandIns

MINUTES = 1
TIER = "check"

# Default compilers of a distribution where the names of the kernels' compilers contain their release.
NEWER = {"rustc": "echo 'rustc 1.93.1 (01f6ddf75 2026-02-11)'", "bindgen": "echo bindgen 0.72.1"}
# A kernel of Ubuntu for EC2, and its source package: name and version.
AWS, AWS_SOURCE = "7.3.0-1004-aws", "linux-aws_7.3.0-1004.4"
# Reports 7 MB of free space if the test has created the file `full`.
DF = 'echo "Filesystem 1048576-blocks Used Available"; echo "/dev/vda 9999 0 $([ -e "$ROOT/full" ] && echo 7 || echo 9999)"'


class Build(StandIns):
    def setUp(self):
        super().setUp()
        self.kit = self.root / "var/cache/efa-rs/kits" / KERNEL
        self.rust_kit = self.script("dkms/rust-kit", *RUST_KIT)
        self.build = self.script("dkms/build", "/lib/modules", "/var/cache", "/etc/os-release")
        own = f"PATH={self.root}/bin:/usr/bin:/bin"
        self.build.write_text(re.sub("^PATH=.*", own, self.build.read_text(), flags=re.MULTILINE))
        self.bugs = (CLONE / "dkms/bugs").read_text()
        self.write("clone/dkms/bugs", self.bugs)
        (self.root / "lib/modules" / KERNEL).mkdir(parents=True)
        (self.root / "lib/modules" / KERNEL / "build").symlink_to(self.headers)
        (self.root / "usr/src").mkdir(parents=True)
        (self.root / "usr/src/linux-source-7.3.tar.xz").symlink_to(self.root / "source")
        self.program("df", DF)
        self.dpkg()

    def dpkg(self, headers="7.3.12-1", source="ii 7.3.12-1"):
        """Sets which packages are installed."""
        self.program("dpkg-query", f"case $* in *linux-headers*) echo '{headers}' ;; *) echo '{source}' ;; esac; [ -n '{headers}' ]")

    def ubuntu(self):
        """Adds the metadata to the headers, and compilers with their release in their names."""
        self.write("headers/rust/libkernel.rmeta", "")
        for name, number in (("rustc", "1.85"), ("bindgen", "0.71")):
            self.program(f"{name}-{number}", PROGRAMS[name])
            self.program(name, NEWER[name])

    def run_build(self):
        return subprocess.run([self.build, self.kit.name], env=self.environment(), capture_output=True, text=True, check=False)

    def builds(self, folder, rustc="rustc", bindgen="bindgen"):
        """Fails unless the build succeeds, and make has built in that folder with these compilers; returns the output."""
        result = self.run_build()
        self.assertEqual(result.returncode, 0, result.stderr)
        _, _, *arguments = (self.root / "make-arguments").read_text().split()
        wanted = [str(folder), f"M={self.root}/clone", f"RUSTC={rustc}", f"BINDGEN={bindgen}", "modules"]
        self.assertEqual(arguments, wanted)
        return result.stdout

    def fails(self, sentence):
        """Fails unless the build fails with that sentence at the end, and leaves no folder of its own."""
        result = self.run_build()
        self.assertNotEqual(result.returncode, 0)
        self.assertRegex(result.stderr.splitlines()[-1], f"^efa-rs: .*{sentence}")
        self.assertEqual(list(self.root.glob("var/cache/efa-rs/work.*")), [])

    def test_compilers_of_a_release_of_their_own(self):
        self.ubuntu()
        self.builds(self.headers, "rustc-1.85", "bindgen-0.71")

    def test_those_are_left_alone_if_the_usual_ones_are_the_kernels(self):
        self.ubuntu()
        for name in NEWER:
            self.program(name, PROGRAMS[name])
        self.builds(self.headers)

    def test_one_of_that_release_that_is_not_the_kernels(self):
        self.ubuntu()
        self.program("rustc-1.85", "echo 'rustc 1.85.0 (4d91de4e4 2025-02-17)'")
        self.fails("built with 'rustc 1.85.1 .*' but the Rust compiler here is 'rustc 1.93.1 .*': install the package rustc")

    def test_metadata_that_is_not_installed(self):
        self.ubuntus("7.3.0-8-generic")
        self.program("apt-get", "exit 100")
        self.fails(r"is missing .*: install the package linux-lib-rust-7\.3\.0-8-generic, which has the Rust metadata\.$")

    def ubuntus(self, release):
        """Sets up a kernel of Ubuntu, whose headers have the source's Makefile, without metadata. Its number is not in its release."""
        self.ubuntu()
        (self.headers / "rust/libkernel.rmeta").unlink()
        (self.root / "usr/src/linux-source-7.3.tar.xz").unlink()
        shutil.copy(self.root / "source/Makefile", self.headers)
        self.write("headers/include/config/kernel.release", f"{release}\n")
        self.write("etc/os-release", "ID=ubuntu\nID_LIKE=debian\n")
        self.dpkg(headers=AWS_SOURCE, source="")
        self.program("uname", f"[ $1 = -m ] && echo x86_64 || echo {release}")
        self.kit = self.kit.with_name(release)
        (self.root / "lib/modules" / release).mkdir()
        (self.root / "lib/modules" / release / "build").symlink_to(self.headers)

    def source_package(self):
        """Makes a source package with an archive and a patch, whose script does what a patch can't; returns its folder."""
        folder, (name, version) = self.root / "mirror", AWS_SOURCE.split("_")
        tree = folder / "tree"
        shutil.copytree(self.root / "source", tree)
        tar = folder / f"{name}_{version.partition('-')[0]}.orig.tar.gz"
        subprocess.run(["tar", "-c", "-z", "-f", tar, "-C", folder, "tree"], check=True)
        files = {
            "debian/control": f"Source: {name}\nMaintainer: a <a@b.example>\n\nPackage: {name}\nArchitecture: all\nDescription: x\n",
            "debian/changelog": f"{name} ({version}) x; urgency=low\n\n  * x\n\n -- a <a@b.example>  Mon, 30 Nov 2026 00:00:00 +0000\n",
            "debian/debian.env": "DEBIAN=debian.aws\n",
            "debian.aws/reconstruct": "ln -s patched rust/link\n",
            "rust/patched": "",
        }
        for file, text in files.items():
            self.write(f"mirror/tree/{file}", text or "of Ubuntu\n")
        subprocess.run(["dpkg-source", "--format=1.0", "--build", "tree"], cwd=folder, check=True, capture_output=True)
        shutil.rmtree(tree)
        return folder

    def test_a_kernel_whose_metadata_are_in_no_package(self):
        self.ubuntus(AWS)
        mirror = self.source_package()
        self.program("apt-get", 'echo "$@" >"$ROOT/apt-arguments"; cp "$ROOT"/mirror/* .')
        self.write("make-hook", '[ "$1" != -s ] || [ -e "$ROOT/used" ] || cp -a "$3" "$ROOT/used"\n')
        self.builds(self.kit, "rustc-1.85", "bindgen-0.71")
        self.assertEqual((self.root / "apt-arguments").read_text(), "--quiet --download-only source linux-aws=7.3.0-1004.4\n")
        link = self.root / "used/rust/link"
        self.assertEqual((os.readlink(link), link.read_text()), ("patched", "of Ubuntu\n"))
        self.assertEqual([path.name for path in self.kit.parents[1].iterdir()], ["kits"])
        self.assertIn("is there already", self.builds(self.kit, "rustc-1.85", "bindgen-0.71"))
        # Kept files serve without network.
        shutil.rmtree(self.kit)
        self.program("apt-get", "exit 100")
        folder = shutil.move(mirror, self.root / "var/cache/efa-rs/sources")
        self.assertIn(f"is {folder}/{AWS_SOURCE}.dsc.", self.builds(self.kit, "rustc-1.85", "bindgen-0.71"))
        shutil.rmtree(self.kit)
        (archive,) = folder.glob("*.orig.tar.gz")
        archive.write_bytes(archive.read_bytes()[:-20])
        self.fails(f"cannot be read from {AWS_SOURCE}.dsc: if it is in {folder}, replace it and its files")

    def test_its_source_cannot_be_downloaded(self):
        self.ubuntus(AWS)
        self.program("apt-get", "exit 100")
        self.fails(f"put deb-src into apt's sources, and run 'apt-get update' .*, put the files of the source package {AWS_SOURCE} into")
        self.program("apt-get", "exit 0")
        self.fails(f"cannot be read from {AWS_SOURCE}.dsc")
        # The kernel was not installed as a package.
        self.dpkg(headers="")
        self.fails(f"is missing .*: run 'apt-get source linux-headers-{AWS}' with deb-src in apt's sources, and '.* --source DIR' with")

    def test_a_kit_is_made_and_serves_the_next_build(self):
        self.assertNotIn("there already", self.builds(self.kit))
        self.assertIn(f"The Rust kit of kernel {KERNEL} is there already.", self.builds(self.kit))
        self.assertEqual([path.name for path in self.kit.parents[1].iterdir()], ["kits"])

    def test_a_kit_that_was_made_by_hand(self):
        self.dpkg(headers="")
        (self.root / "usr/src/linux-source-7.3.tar.xz").unlink()
        self.fails("The source of kernel .* is missing")
        command = [self.rust_kit, "--source", self.root / "source"]
        made = subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=False)
        self.assertEqual(made.stdout, f"{self.kit}\n", made.stderr)
        self.assertIn("is there already", self.builds(self.kit))

    def test_one_made_with_compilers_of_a_release_of_their_own(self):
        self.ubuntu()
        (self.headers / "rust/libkernel.rmeta").unlink()
        compilers = {"RUSTC": "rustc-1.85", "BINDGEN": "bindgen-0.71"}
        command = [self.rust_kit, "--source", self.root / "source"]
        subprocess.run(command, env=self.environment() | compilers, check=True, capture_output=True)
        self.assertIn("is there already", self.builds(self.kit, *compilers.values()))

    def test_a_kit_of_other_headers_is_made_again(self):
        self.builds(self.kit)
        self.write("headers/.config", CONFIG + "CONFIG_NEW=y\n")
        self.assertNotIn("is there already", self.builds(self.kit))

    def test_what_is_of_no_use_any_more_is_removed(self):
        gone = self.write("var/cache/efa-rs/kits/7.3.1-gone/key", "").parent
        killed = self.write("var/cache/efa-rs/work.999999999.abcdef/kit", "").parent
        self.builds(self.kit)
        self.assertEqual((gone.exists(), killed.exists()), (False, False))

    def test_a_source_that_is_not_installed_is_downloaded(self):
        for installed in ("", "ii 7.3.11-1"):
            self.dpkg(source=installed)
            self.program("apt-get", 'echo "$@" >"$ROOT/apt-arguments"; exit 100')
            self.fails("could not be downloaded: run 'apt-get update' and 'apt-get install linux-source-7.3=7.3.12-1'")
            self.assertEqual((self.root / "apt-arguments").read_text(), "--quiet download linux-source-7.3=7.3.12-1\n")

    def sources(self):
        """Creates the folder of kept sources, with the source of another version; returns its path."""
        folder = self.root / "var/cache/efa-rs/sources"
        self.keeps(folder, "7.3.11-1")
        return folder

    def keeps(self, folder, version):
        """Puts a package with the source of a version into a folder."""
        tree = self.root / "package"
        (tree / "DEBIAN").mkdir(parents=True, exist_ok=True)
        (tree / "usr/src").mkdir(parents=True, exist_ok=True)
        (tree / "DEBIAN/control").write_text(
            f"Package: linux-source-7.3\nVersion: {version}\nArchitecture: all\nMaintainer: a <a@b.example>\nDescription: source\n"
        )
        file = tree / "usr/src/linux-source-7.3.tar.xz"
        subprocess.run(["tar", "-c", "-J", "-f", file, "-C", self.root, "--transform=s/^source/linux-source-7.3/", "source"], check=True)
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["dpkg-deb", "--build", tree, folder / f"linux-source-7.3_{version}_all.deb"], check=True, capture_output=True)

    def test_a_kept_source_is_used_without_network(self):
        self.dpkg(source="")
        self.program("apt-get", "exit 100")
        folder = self.sources()
        self.fails(f"could not be downloaded: .*, put the file of that package into {folder}, or purge that kernel")
        self.keeps(folder, "7.3.12-1")
        self.assertIn("7.3.12-1_all.deb.", self.builds(self.kit))

    def test_a_kept_source_that_was_copied_in_part_is_named(self):
        self.dpkg(source="")
        folder = self.sources()
        self.keeps(folder, "7.3.12-1")
        file = folder / "linux-source-7.3_7.3.12-1_all.deb"
        file.write_bytes(file.read_bytes()[:-200])
        self.fails(f"cannot be read from {file.name}: if it is in {folder}, replace it")

    def test_a_downloaded_source_is_kept_if_there_is_a_folder_for_it(self):
        self.dpkg(source="")
        folder = self.sources()
        self.keeps(self.root / "mirror", "7.3.12-1")
        self.program("apt-get", 'cp "$ROOT"/mirror/*.deb .')
        self.builds(self.kit)
        self.assertEqual(len(list(folder.iterdir())), 2)

    def test_no_room(self):
        self.write("full", "")
        dkms = f"'dkms autoinstall -k {re.escape(KERNEL)}'"
        self.fails(f"it needs 1500 MB in /.*, and 7 MB are free; free some, then run 'dpkg --configure -a' or {dkms}\\.$")
        self.write("etc/os-release", "ID=fedora\n")
        self.fails(f"; free some, then run {dkms}\\.$")

    def test_what_the_kit_lacks_is_said(self):
        self.program("bindgen", "exit 1")
        self.fails("bindgen is missing: install the package bindgen")

    def test_a_module_that_does_not_build_is_to_be_reported(self):
        self.write("headers/rust/libkernel.rmeta", "")
        self.write("make-hook", "exit 2\n")
        self.fails(f"could not be built .*: report it at {re.escape(self.bugs.strip())} with the output of 'efa-report'")
        self.write("full", "")
        self.fails("it needs 100 MB")
