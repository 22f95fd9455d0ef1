# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""make upstream: the layer over the RDMA core as series of patches for Linux's tree. Each patch is built and checked.

upstream/series.toml says which files are in which patch, and upstream/*.msg why. A tree with the kernel built stays in the cache. The
results of a patch are cached under the hash of all patches up to it.
"""

import difflib
import json
import re
import subprocess
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from . import build, cache, debug_kernel, in_tree, ktap, steps, toolroot
from .failure import Failure
from .tally import Tally

FOLDER = cache.CLONE / "upstream"
CONFIG = "/efa-rs/upstream/config"
TREE = "/run/efa-rs/build"
# Parts of Linux's source that are not unpacked.
LEFT_OUT = (
    *("Documentation/*.*", "arch/[a-wyz]*/*.[chS]", "arch/*/boot/dts/*", "drivers/gpu/drm/*/*.[ch]", "sound/*.[ch]"),
    *("tools/testing/selftests/*", "tools/perf/*"),
)
MAKE = f"make --no-print-directory -j{build.os.cpu_count()} LLVM=-19 CLIPPY=1"
CHECKS = ("builds", "clippy", "rustdoc", "checkpatch")
# The function that rewrites a Rust file, by its place in the tree.
REWRITES = {"rust/kernel/": in_tree.source, "samples/": in_tree.outside, "drivers/": in_tree.driver}
# Patterns of the files that a driver is built from.
DRIVER_FILES = ("*.rs", "*.[ch]", "*.awk", "Kbuild", "Makefile.*")
# A warning of a compiler, and where it is.
WARNING = re.compile(r"^(?:warning|error)(?:\[\w+\])?: (?P<what>.*)\n(?:.*\n){0,2}?\s*--> (?P<place>\S+)", re.MULTILINE)


@dataclass
class Patch:
    """A patch: its message, and the files that it changes, before and after."""

    name: str
    message: str
    changes: dict[str, tuple[str, str]]
    state: dict[str, str]
    config: str
    # Its series, and its number in it.
    series: str
    number: int
    key: str = ""

    @property
    def subject(self):
        return self.message.splitlines()[0]

    @property
    def added(self):
        """The number of lines that the patch adds."""
        return len(re.findall(r"^\+(?!\+\+ )", self.text(), re.MULTILINE))

    def text(self):
        """The patch as git would mail it, without a sender."""
        parts = [f"Subject: [PATCH] {self.message.rstrip()}\n---\n\n"]
        for path, (old, new) in sorted(self.changes.items()):
            before = "/dev/null" if not old else f"a/{path}"
            lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), before, f"b/{path}")
            parts.append(f"diff --git a/{path} b/{path}\n" + "new file mode 100644\n" * (not old) + "".join(lines))
        return "".join(parts) + "--\n"


@dataclass
class Parts:
    """The contents of all patches up to one."""

    modules: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    includes: list[str] = field(default_factory=list)
    on: list[str] = field(default_factory=list)
    config: list[str] = field(default_factory=list)
    edits: list[dict[str, str]] = field(default_factory=list)
    # Modules with items that only a later patch uses.
    dead: set[str] = field(default_factory=set)
    # Names of items that are left out, with all that mentions them; of one module, if the module is named with a dot.
    without: list[str] = field(default_factory=list)


def description():
    """The table of all series."""
    return tomllib.loads((FOLDER / "series.toml").read_text())


def key():
    """Returns the cache key of the tree, without series and configuration: changes of these rebuild it in place."""
    return cache.key(*toolroot.versions(*debug_kernel.INPUTS))


def tree():
    """Returns the folder with Linux's source, built."""

    def make(path):
        (path / "tree").mkdir(parents=True)
        options = " ".join(f"--exclude='linux-*/{pattern}'" for pattern in LEFT_OUT)
        unpack = f"tar -x -f {toolroot.source(toolroot.SERIES)} -C {TREE} --strip-components=1 --wildcards {options}"
        with steps.step("Linux for the series") as log:
            in_tree_of(path, unpack, log)
            (path / "tree" / "rustdoc.mk").write_text(RUSTDOC)
            in_tree_of(path, f"{BUILD} && {DOCUMENT}", log)

    return cache.make(cache.folder("upstream") / key(), "Linux's tree for the series", 3, make)


def in_tree_of(folder, command, log):
    """Runs a command in the tree, which has to succeed."""
    binds = [(folder / "tree", TREE, "rw")]
    steps.run(build.building(["sh", "-c", f"cd {TREE} && {command}"], binds), log, "Building Linux")


def rustfmt(text):
    """Formats a Rust file."""
    command = build.in_toolroot(["rustfmt", "--edition", "2021", "--emit", "stdout"])
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failure(f"rustfmt rejects a rewritten file: correct the tables in in_tree.py.\n{done.stderr}")
    return done.stdout


def formatted(texts):
    """Formats the Rust files among TEXTS, which are by path. Results are cached."""
    folder = cache.folder("upstream-rustfmt")
    for path, text in texts.items():
        if path.endswith(".rs"):
            kept = folder / cache.key(text)
            if not kept.exists():
                cache.write(kept, in_tree.wrapped(rustfmt(text)))
            texts[path] = kept.read_text()
    return texts


def with_tests(source, text):
    """Appends the tests of a file of the layer, if it has any, to its rewritten text."""
    tests = FOLDER / "tests" / source.removeprefix("efa_rs/rdma/")
    return text + "\n" + tests.read_text() if source.startswith("efa_rs/rdma/") and tests.exists() else text


def there(folder):
    """The paths of the files in a tree that a state has written."""
    kept = folder / "there.json"
    return set(json.loads(kept.read_text())) if kept.exists() else set()


def original(folder, path):
    """The text of a file without any patch; empty if there is no such file."""
    kept = folder / "before" / path
    if not kept.exists() and path not in there(folder):
        kept = folder / "tree" / path
    return kept.read_text() if kept.exists() else ""


def edited(text, edit):
    """Returns a file after an edit: TEXT added before or after an anchor, or instead of what is cut from one anchor to another."""
    added, cut = edit.get("text", ""), ""
    if "cut" in edit:
        begin = text.find(edit["cut"])
        end = text.find(edit["to"], begin)
        if min(begin, end) < 0:
            raise Failure(f"{edit['file']} does not have {edit['cut']!r} and {edit['to']!r}: correct upstream/series.toml.")
        cut = text[begin:end]
        if "before" not in edit:
            return text[:begin] + added + text[end:]
        text = text[:begin] + text[end:]
    anchor = edit.get("after") or edit["before"]
    if text.count(anchor) != 1:
        raise Failure(f"{edit['file']} has {anchor!r} not just once, where upstream/series.toml adds lines: correct that.")
    return text.replace(anchor, anchor + added if "after" in edit else cut + added + anchor)


def made(parts, folder):
    """Returns all files that differ from those of the tree in FOLDER once the PARTS are in it."""
    texts = {}
    on = set(parts.on)
    for edit in parts.edits:
        path = edit["file"]
        texts[path] = edited(texts.get(path) or original(folder, path), edit)
    root = in_tree.resolved((cache.CLONE / "efa_rs/rdma.rs").read_text(), on)
    missing = {match["name"] for match in in_tree.MODULE.finditer(root)} - set(parts.modules)
    files = {name: cache.CLONE / f"efa_rs/rdma/{name}.rs" for name in parts.modules}
    modules = {name: file.read_text() for name, file in files.items() if file.exists()}
    names = {name for name in parts.without if "." not in name}

    def own(module):
        return names | {item.partition(".")[2] for item in parts.without if item.startswith(f"{module}.")}

    for text in modules.values():
        names |= in_tree.reduced(text, missing, names, on)[1]
    modules = {name: in_tree.reduced(text, missing, own(name), on)[0] for name, text in modules.items()}
    rust, used, called = {}, [], set()
    for source, target in parts.files.items():
        text = (cache.CLONE / source).read_text()
        if target.endswith(".rs"):
            if source.startswith("efa_rs/sys/"):
                # Items for the rest of sys/ are for drivers in the tree.
                text = text.replace("pub(super) ", "pub(crate) ")
            rewrite = next(rewrite for start, rewrite in REWRITES.items() if target.startswith(start))
            text = in_tree.reduced(text, (), own(Path(source).stem), on)[0]
            if rewrite == in_tree.source:
                used.append(text)
            else:
                called |= in_tree.called([text])
            rust[target] = with_tests(source, rewrite(text))
        else:
            texts[target] = in_tree.rewritten(text, in_tree.DRIVER)
    if modules:
        rust["rust/kernel/rdma.rs"] = in_tree.module(root, modules, parts.modules, parts.dead)
    for name, text in modules.items():
        rust[f"rust/kernel/rdma/{name}.rs"] = with_tests(f"efa_rs/rdma/{name}.rs", in_tree.source(text))
    texts |= formatted(rust)
    for path in texts:
        if path.endswith("/ffi/helpers.c"):
            texts[path] = in_tree.with_functions(texts[path], called)
    helpers = (cache.CLONE / "efa_rs/ffi/helpers.c").read_text()
    if parts.includes:
        texts["rust/helpers/rdma.c"] = in_tree.helpers(helpers, in_tree.called([*used, *modules.values()]), parts.includes)
    return texts


def driver(target, parts):
    """The files of efa_rs/ that are in no patch yet, and their places in the folder TARGET."""
    taken = {*parts.files, "efa_rs/rdma.rs"}
    found = {str(file.relative_to(cache.CLONE)) for pattern in DRIVER_FILES for file in (cache.CLONE / "efa_rs").rglob(pattern)}
    mine = sorted(file for file in found - taken if not file.startswith("efa_rs/rdma/"))
    return {file: f"{target}/{file.removeprefix('efa_rs/')}" for file in mine}


def patches_of(folder):
    """The patches of all series in their order, for the tree in FOLDER."""
    parts, last, patches, table = Parts(), {}, [], description()
    entries = [entry for series in table["series"] for entry in series["patch"]]
    for series in table["series"]:
        for number, entry in enumerate(series["patch"], 1):
            for name in ("modules", "on", "config"):
                setattr(parts, name, getattr(parts, name) + entry.get(name, []))
            parts.includes = sorted({*parts.includes, *entry.get("includes", [])})
            later = entries[entries.index(entry) + 1 :]
            parts.dead = {name for other in later for name in other.get("completes", [])}
            parts.without = [*table["without"], *(name for other in later for name in other.get("items", []))]
            parts.files |= entry.get("files", {})
            parts.files |= driver(entry["driver"], parts) if "driver" in entry else {}
            parts.edits += entry.get("edit", [])
            state = made(parts, folder)
            changes = {path: (last.get(path) or original(folder, path), text) for path, text in state.items()}
            changes = {path: texts for path, texts in changes.items() if texts[0] != texts[1]}
            config = (FOLDER / "config").read_text() + "".join(f"{option}\n" for option in parts.config)
            message = (FOLDER / f"{entry['message']}.msg").read_text()
            patch = Patch(entry["message"], message, changes, state, config, series["name"], number)
            patch.key = cache.key(key(), RECIPE, config, *(earlier.text() for earlier in patches), patch.text())
            patches.append(patch)
            last = state
    return patches


def put(folder, state):
    """Writes the files of a state to a tree, and restores or removes those of other states."""
    before = there(folder)
    for path in state.keys() - before:
        if text := original(folder, path):
            (folder / "before" / path).parent.mkdir(parents=True, exist_ok=True)
            cache.write(folder / "before" / path, text)
    cache.write(folder / "there.json", json.dumps(sorted(before | state.keys())))
    for path in before | state.keys():
        file, kept = folder / "tree" / path, folder / "before" / path
        text = state.get(path, kept.read_text() if kept.exists() else None)
        if text is None:
            file.unlink(missing_ok=True)
        elif not file.exists() or file.read_text() != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    cache.write(folder / "there.json", json.dumps(sorted(state)))


# The documentation of the kernel crate. KEEP are the crates whose documentation was made with the tree.
RUSTDOC = """include Makefile
efa_rustdoc: prepare
	$(Q)$(MAKE) $(build)=rust $(KEEP) rustdoc-kernel
"""
KEEP = " ".join(f"-o rustdoc-{name}" for name in ("core", "ffi", "macros", "pin_init", "compiler_builtins", "clean"))
BUILD = f"{MAKE} -s KCONFIG_ALLCONFIG={CONFIG} allnoconfig && {MAKE} bzImage modules"
DOCUMENT = f"{MAKE} -f rustdoc.mk efa_rustdoc"
DOCUMENT_ONE = f"{DOCUMENT} KEEP='{KEEP}'"
RECIPE = BUILD + DOCUMENT_ONE + RUSTDOC


def run(folder, command, log):
    """Runs a command in the tree; returns its exit status and its output."""
    begin = log.tell()
    binds = [(folder / "tree", TREE, "rw")]
    status = steps.call(build.building(["sh", "-c", f"cd {TREE} && {command}"], binds), stdout=log, stderr=subprocess.STDOUT)
    with open(log.name, errors="replace") as file:
        file.seek(begin)
        return status, file.read()


def warnings(text, paths=None):
    """Returns the warnings in the output of a compiler: all, or those of some files."""
    found = [f"{match['place']}: {match['what']}" for match in WARNING.finditer(text)]
    return [line for line in found if paths is None or line.split(":")[0] in paths]


def inspect(folder, patch, ignored):
    """Checks a patch; returns its problems by check."""
    found = {}
    put(folder, patch.state)
    (folder / "tree" / "rustdoc.mk").write_text(RUSTDOC)
    (folder / "tree" / "this.patch").write_text(patch.text())
    (folder / "tree" / "this.config").write_text(patch.config)
    with steps.step(f"upstream {patch.name}") as log:
        status, said = run(folder, BUILD.replace(CONFIG, "this.config"), log)
        found["builds"] = [f"see {log.name}", *warnings(said)[:20]] if status else []
        found["clippy"] = ["it does not build"] * bool(status) or warnings(said)
        status, said = run(folder, DOCUMENT_ONE, log)
        found["rustdoc"] = ([f"see {log.name}"] if status else []) + warnings(said, patch.state)
        options = f"--strict --no-signoff --terse --show-types{' --ignore ' + ','.join(ignored) if ignored else ''}"
        status, said = run(folder, f"./scripts/checkpatch.pl {options} this.patch", log)
        found["checkpatch"] = [line for line in said.splitlines() if re.search(r"\b(ERROR|WARNING|CHECK):", line)]
        if status and not found["checkpatch"]:
            found["checkpatch"] = [f"see {log.name}"]
    return found


def checked(patch, ignored):
    """Like inspect(), with cached results if the patch and those before it have not changed."""
    kept = cache.folder("upstream-results") / cache.key(patch.key, *sorted(ignored))
    if kept.exists():
        return json.loads(kept.read_text())
    with cache.lock("upstream-tree"):
        found = inspect(tree(), patch, ignored)
    if not any(found.values()):
        cache.write(kept, json.dumps(found))
    return found


def write(patches):
    """Writes the patches as files, and the cover letter of each series; returns their folder."""
    folder = cache.clone_folder("upstream")
    for old in folder.glob("**/*.patch"):
        old.unlink()
    for series in description()["series"]:
        mine = [patch for patch in patches if patch.series == series["name"]]
        lines = [f"{patch.number:4}. {patch.subject}  (+{patch.added})\n" for patch in mine]
        cover = (FOLDER / f"{series['name']}.msg").read_text().rstrip()
        (folder / series["name"]).mkdir(exist_ok=True)
        letter = f"Subject: [PATCH 0/{len(mine)}] {cover}\n\n{''.join(lines)}"
        (folder / series["name"] / "0000-cover-letter.patch").write_text(letter)
        for patch in mine:
            text = patch.text().replace("[PATCH]", f"[PATCH {patch.number}/{len(mine)}]", 1)
            (folder / series["name"] / f"{patch.number:04}-{patch.name}.patch").write_text(text)
    return folder


def check():
    """Checks all patches, and prints a line for each."""
    tally = Tally()
    patches = patches_of(tree())
    steps.note(f"the patches are in {write(patches)}")
    for series in description()["series"]:
        added = sum(patch.added for patch in patches if patch.series == series["name"])
        print(f"{series['name']}: {added} added lines", flush=True)
        if added > series.get("max_lines", added):
            tally.fail(f"{series['name']} has at most {series['max_lines']} lines", said=f"It has {added}.")
    ignored = description().get("checkpatch", {})
    for patch in patches:
        found, title = checked(patch, ignored), f"{patch.series} {patch.number}"
        for name in CHECKS:
            if found[name]:
                tally.fail(f"{title} {name}", said="\n".join(found[name]))
                steps.note(f"{title} {name}: failed\n" + "\n".join(f"    {line}" for line in found[name]))
            else:
                tally.succeed(f"{title} {name}")
        row = ", ".join(f"{name} {'failed' if found[name] else 'ok'}" for name in CHECKS)
        print(f"{title} {patch.subject}: {row}", flush=True)
    return tally


# Minimum number of examples and tests of the layer that have to run.
TESTS = 60
# Tests of the whole kernel crate run, but only those with such names count.
OURS = re.compile(r"rdma|sample")
# Time limit of the guest in seconds.
LIMIT = 600
INIT = """#!/bin/busybox sh
busybox=/bin/busybox
$busybox mount -t proc proc /proc
$busybox mount -t sysfs sysfs /sys
number=0
result() {
	number=$((number + 1)) name=$1
	shift
	if "$@"; then echo "ok $number - sample: $name"; else echo "not ok $number - sample: $name"; fi
}
echo 1..8
result "the core sets handlers early, and disables devices" $busybox insmod /core_test.ko
result "the provider loads" $busybox insmod /rust_null_rdma.ko
result "its device is registered" $busybox test -e /sys/class/infiniband/null0/node_guid
result "the client loads" $busybox insmod /rust_rdma_exchange.ko
result "the client is removed" $busybox rmmod rust_rdma_exchange
result "the provider is removed" $busybox rmmod rust_null_rdma
result "the driver loads" $busybox insmod /efa.ko
result "the driver is removed" $busybox rmmod efa
$busybox reboot -f
"""
IMAGE = """
    rm -rf guest && mkdir -p guest/bin guest/proc guest/sys guest/dev
    cp /bin/busybox guest/bin
    make -s LLVM=-19 M=core_test modules && cp core_test/core_test.ko guest
    cp samples/rust/rust_null_rdma.ko samples/rust/rdma_exchange/rust_rdma_exchange.ko guest
    cp drivers/infiniband/hw/efa_rust/efa.ko guest
    cp guest.init guest/init && chmod +x guest/init
    cd guest && find . | cpio -o -H newc >../guest.cpio
"""
# On a busy machine, timers of an emulated CPU are too late for the kernel's check of them.
GUEST = (
    "qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none -machine q35 -cpu qemu64 -m 512M -bios qboot.rom"
    " -kernel arch/x86/boot/bzImage -initrd guest.cpio -serial stdio"
    " -append 'console=ttyS0 panic=-1 no_timer_check kunit.enable=1 kunit.autorun=1'"
)


def kunit(folder, patch):
    """The output of a guest that runs the examples and KUnit tests of a tree with all patches, and loads its modules."""
    put(folder, patch.state)
    tests = patch.config + "CONFIG_RUST_KERNEL_DOCTESTS=y\n"
    core = (FOLDER / "tests" / "core_test.c").read_text()
    (folder / "tree" / "core_test").mkdir(exist_ok=True)
    files = (("kunit.config", tests), ("guest.init", INIT), ("core_test/core_test.c", core), ("core_test/Kbuild", "obj-m := core_test.o\n"))
    for name, text in files:
        (folder / "tree" / name).write_text(text)
    with steps.step("upstream KUnit") as log:
        for what, command in (("Building the kernel", BUILD.replace(CONFIG, "kunit.config")), ("Making its file system", IMAGE)):
            status, _ = run(folder, command, log)
            if status:
                raise Failure(f"{what} failed: see {log.name}.")
        status, said = run(folder, f"timeout {LIMIT} {GUEST}", log)
        if status:
            raise Failure(f"The guest ended with exit status {status}: see {log.name}.")
        return said.replace("\r", "")


def test():
    """Runs the examples and KUnit tests of the layer, and loads its modules, in a guest."""
    patch = patches_of(tree())[-1]
    kept = cache.folder("upstream-results") / cache.key(patch.key, INIT, IMAGE, GUEST, (FOLDER / "tests" / "core_test.c").read_text())
    if not kept.exists():
        with cache.lock("upstream-tree"):
            cache.write(kept, kunit(tree(), patch))
    total, tally = ktap.parse(kept.read_text()), Tally()
    for case in total.cases:
        if not OURS.search(case.name):
            continue
        if case.outcome == "passed":
            tally.succeed(case.name)
        elif case.outcome == "failed":
            tally.fail(case.name, said=case.said)
        else:
            tally.skip(case.name)
    count = sum("rdma" in case.name for case in tally.cases)
    print(f"{count} examples and KUnit tests of the layer ran, of {total.total()} in the kernel", flush=True)
    if count < TESTS:
        tally.fail(f"at least {TESTS} examples and KUnit tests run")
    if tally.failed:
        # After a failure, the tests run again the next time.
        kept.unlink()
    return tally
