# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Rewrites a file of efa_rs/ for its place in Linux's tree: paths, visibility, and the names of C functions. Nothing else changes."""

import operator
import re
import textwrap

# Prefixes of paths here, and in the tree. The longest match counts. Other paths are unchanged.
PATHS = {
    ("crate", "ffi"): ("crate", "bindings"),
    ("crate", "ffi", "UapiDefinitions"): ("self", "uapi", "UapiDefinitions"),
    ("crate", "sys", "attach"): ("crate", "device", "attach"),
    ("crate", "sys", "dma"): ("crate", "dma", "user"),
    ("crate", "sys", "mmio"): ("crate", "pci", "region"),
    ("super", "words"): ("crate", "dma", "words"),
    ("crate", "sys", "atomic"): ("core", "sync", "atomic"),
    ("crate", "sys", "atomic", "Relaxed"): ("core", "sync", "atomic", "Ordering", "Relaxed"),
    ("kernel",): ("crate",),
}
# The same for files outside of the kernel crate.
PATHS_OUTSIDE = {
    ("crate", "rdma"): ("kernel", "rdma"),
    ("crate", "sys", "attach"): ("kernel", "device", "attach"),
    ("crate", "sys", "dma"): ("kernel", "dma", "user"),
    ("crate", "sys", "mmio"): ("kernel", "pci", "region"),
    # Used by files in a driver's own sys/.
    ("super", "attach"): ("kernel", "device", "attach"),
}
# Edits of a driver's own files, mainly of ffi/ and sys/, parts of which are in the kernel crate or elsewhere in the tree.
DRIVER = (
    (re.compile(r"^(?:pub\(crate\) mod (?:attach|dma|mmio)|mod words);\n", re.MULTILINE), ""),
    (re.compile(r"^(?:#\[[^\n]*\]\n)?mod rdma;\n", re.MULTILINE), ""),
    (re.compile(r"^mod uapi;\n\n", re.MULTILINE), ""),
    (re.compile(r"\buse uapi::UapiDefinitions\b"), "use kernel::rdma::UapiDefinitions"),
    # Only the layer uses it.
    (re.compile(r"^    AtomicPtr,\n", re.MULTILINE), ""),
    # Only the emulator compiles hw/ as a crate.
    (re.compile(r"^#!\[cfg_attr\(not\(MODULE\), no_std\)\]\n\n?", re.MULTILINE), ""),
    (re.compile(r'"[.][.]/include/efa_verbs[.]h"'), "<rdma/efa_verbs.h>"),
    (re.compile(r"[$][(]src[)]/include/efa_verbs[.]h"), "$(srctree)/include/rdma/efa_verbs.h"),
    (re.compile(r"^obj-m := ", re.MULTILINE), "obj-$(CONFIG_INFINIBAND_EFA_RUST) := "),
    # Bits that are guesses, which only tests use.
    (re.compile(r"(?:^ +///[^\n]*\n)+^ +\d+:\d+ relaxed_ordering => bool,\n", re.MULTILINE), ""),
    # Text about a module that is built out of tree.
    (re.compile(r" Needs kernel headers with Rust metadata;.*?leaves it out[.]", re.DOTALL), ""),
    (re.compile(r"# Kernel verbs, unless KVERBS=0[.]\n.*?\nendif\n\n", re.DOTALL), ""),
)
# Modules that are a part of the driver's crate here, and of the kernel crate in the tree.
SHARED = re.compile(r"(?:^#\[allow\([^\n]*\)\]\n)?^mod (?:ffi|rdma|sys);\n", re.MULTILINE)
# Paths whose uses are rewritten below in the kernel crate, so that nothing imports them there.
UNUSED = {
    ("super", "atomic", "dma_rmb"),
    ("super", "atomic", "read_once"),
    ("crate", "sys"),
    ("crate", "sys", "device"),
    ("super", "device", "as_raw"),
    ("super", "pci", "as_raw"),
}
# Edits outside of imports and documentation.
CODE = (
    (re.compile(r"(?<![:\w])ffi::UapiDefinitions"), "super::uapi::UapiDefinitions"),
    (re.compile(r"(?<![:\w])ffi::(?!c_|\{)(\w+)"), r"bindings::\1"),
    (re.compile(r"\$crate::ffi::"), "$crate::bindings::"),
    (re.compile(r"(?<![:\w$])kernel::(?=\w)"), "crate::"),
    (re.compile(r"(?<![.\w])dma_rmb\(\)"), "crate::sync::barrier::dma_mb(crate::sync::barrier::Read)"),
    (re.compile(r"(?<![.\w])read_once\((\w+)\)"), r"\1.read_volatile()"),
    # A device of the kernel crate has this as a method.
    (re.compile(r"(?<![.\w])(?<!fn )(?:sys::device::)?as_raw\(([\w.]+(?:\(\))?)\)"), r"\1.as_raw()"),
)
# Edits of all lines.
TEXT = (
    (re.compile(r"\bpub\(crate\) "), "pub "),
    (re.compile(r"\bkverbs\b(?=[,)])"), "CONFIG_RUST_INFINIBAND_KVERBS"),
    (re.compile(r"\brdma_client\b(?=[,)])"), "CONFIG_RUST_INFINIBAND_CLIENTS"),
    # Only in an out-of-tree module, the macro is at the root of the crate that uses it.
    (re.compile(r"^macro_rules! client_slot\b", re.MULTILINE), "#[macro_export]\nmacro_rules! client_slot"),
    (re.compile(r"`include/efa_verbs[.]h`"), "`include/rdma/efa_verbs.h`"),
    (re.compile(r"`samples/rdma_exchange`"), "`samples/rust/rdma_exchange`"),
    # In the tree, the option depends on 64BIT.
    (re.compile(r"on every architecture that has EFA\b"), "where the abstractions are"),
)
# Helpers with the arguments of the functions that they call, whose names they get. Others get rdma_ in place of efa_.
HELPERS = {
    "efa_ib_mtu_int_to_enum": "ib_mtu_int_to_enum",
    "efa_mmap_offset": "rdma_user_mmap_get_offset",
    "efa_umem_is_contiguous": "ib_umem_is_contiguous",
    "efa_umem_start": "ib_umem_start_dma_addr",
    "efa_umem_num_blocks": "ib_umem_num_dma_blocks",
    "efa_umem_iter_start": "rdma_umem_block_iter_start",
    "efa_umem_iter_fill": "rdma_umem_block_iter_fill",
    "efa_nla_nest_end": "nla_nest_end",
    "efa_nla_nest_cancel": "nla_nest_cancel",
    "efa_put_net": "put_net",
    "efa_ioremap_wc": "ioremap_wc",
}
HELPER = re.compile(r"\befa_([a-z]\w*)")
# Maximum width of a line in Linux.
WIDTH = 100

USE = re.compile(r"^(?P<attributes>(?:#\[[^\n]*\]\n)*)use (?P<tree>[^;]*);\n", re.MULTILINE)
WORDS = re.compile(r"[\w$]+|::|[{},*]|\bas\b")


def helper(name):
    """Returns the name in the tree of a helper in ffi/helpers.c."""
    return HELPERS.get(name, name.replace("efa_", "rdma_", 1))


def leaves(tree):
    """The paths that an import names."""
    words = iter([*WORDS.findall(re.sub(r"//.*", "", tree)), "}"])

    def parse(prefix):
        """Returns the paths up to the end of a list."""
        found, path = [], prefix
        for word in words:
            if word in (",", "}"):
                found += [path] if path != prefix else []
                path = prefix
                if word == "}":
                    return found
            elif word == "{":
                found += parse(path)
                path = prefix
            elif word == "as":
                path = (*path[:-1], f"{path[-1]} as {next(words)}")
            elif word != "::":
                path = (*path, word)
        return found

    return [path[:-1] if path[-1] == "self" and len(path) > 1 else path for path in parse(())]


def imported(path, table):
    """Returns a path with its prefix in the tree. Outside of the kernel crate, a module keeps its name in the code."""
    length = next((length for length in range(len(path), 0, -1) if path[:length] in table), 0)
    new = table.get(path[:length], ()) + path[length:]
    return (*new[:-1], f"{new[-1]} as {path[-1]}") if table is PATHS_OUTSIDE and path in table and new[-1] != path[-1] else new


def imports(paths):
    """Returns the import of paths in the kernel's format: one name per line."""
    roots = {}
    for path in paths:
        node = roots
        for part in path:
            node = node.setdefault(part, {})
        node[""] = {}

    def form(entry, indent=""):
        name, node = entry
        children = sorted(
            (item for item in node.items() if item[0]), key=lambda item: (item[0].lower() != item[0], item[0].isupper(), item[0])
        )
        if not children:
            return name
        names = [("self", {})] * ("" in node) + children
        if len(names) == 1:
            return f"{name}::{form(names[0], indent)}"
        inner = indent + "    "
        lines = "\n".join(f"{inner}{form(entry, inner)}," for entry in names)
        return f"{name}::{{\n{lines}{'' if lines.endswith('},') else ' //'}\n{indent}}}"

    order = {"core": 0, "crate": 2, "kernel": 1, "self": 4, "super": 3}
    return "".join(f"use {form((root, roots[root]))};\n\n" for root in sorted(roots, key=lambda root: order.get(root, 5)))


def outside(text):
    """Rewrites a Rust file of a module for the tree, where the layer is a part of the kernel crate."""
    shared = bool(SHARED.search(text))
    text = with_imports(SHARED.sub("", text), PATHS_OUTSIDE)
    # rdma is not a module of the crate any more, so it is imported if the code uses its name.
    body = re.sub(r"//.*", "", USE.sub("", text))
    named = shared and re.search(r"(?<![:\w])rdma::", body) and "    rdma,\n" not in text
    return text.replace("use kernel::{\n", "use kernel::{\n    rdma,\n", 1) if named else text


def driver(text):
    """Rewrites a file of a driver for drivers/, where the driver has its own ffi/ and sys/."""
    return with_imports(rewritten(text, DRIVER), PATHS_OUTSIDE)


def source(text):
    """Rewrites a Rust file of efa_rs/ for rust/kernel/."""
    body = with_imports(text, PATHS)
    return "\n".join(line if re.match(r"\s*//[/!]", line) else code(line) for line in rewritten(body, TEXT).split("\n"))


def with_imports(text, table):
    """Replaces the imports of a file by those of the tree, sorted and merged."""
    groups = {}

    def take(match):
        paths = groups.setdefault(match["attributes"], {})
        left_out = UNUSED if table is PATHS else ()
        paths.update((imported(path, table), None) for path in leaves(match["tree"]) if path not in left_out)
        return ""

    first, body = USE.search(text), USE.sub(take, text)
    if not first:
        return body
    new = "".join(attributes + imports(paths) for attributes, paths in groups.items() if paths)
    return body[: first.start()].rstrip("\n") + "\n\n" + new + body[first.start() :].lstrip("\n")


def rewritten(text, rules):
    for pattern, replacement in rules:
        text = pattern.sub(replacement, text)
    return text


def code(line):
    """Rewrites a line of code with the names of the tree."""
    line = HELPER.sub(lambda match: helper(match[0]) if "ffi::" in line else match[0], line)
    return rewritten(line, CODE)


FUNCTION = re.compile(
    r"^(?P<comment>/\*[^/]*\*/\n)?(?P<head>[a-z][\w \*]*?\b\*?)(?P<name>efa_\w+)(?P<rest>\([^{;]*\)\n\{\n.*?^\}\n)",
    re.MULTILINE | re.DOTALL,
)


def broken(line):
    """Breaks the first line of a function in C in two if it is too long."""
    if len(line) <= WIDTH:
        return line
    end = line.rindex(", ", 0, WIDTH) + 1
    tabs, spaces = divmod(line.index("(") + 1, 8)
    return line[:end] + "\n" + "\t" * tabs + " " * spaces + line[end + 1 :]


def shorter(comment):
    """Wraps a comment of C if it is too long."""
    if len(comment) <= WIDTH or comment.count("\n") > 1:
        return comment
    return "/*\n" + textwrap.fill(comment.strip(" /*\n"), WIDTH, initial_indent=" * ", subsequent_indent=" * ") + "\n */\n"


def called(texts):
    """The helpers of ffi/helpers.c that files call."""
    return {name for text in texts for name in re.findall(r"\bffi::(efa_\w+)\(", text)}


def with_functions(text, names):
    """Returns a file of C with only those of its functions that have these NAMES."""
    text = FUNCTION.sub(lambda match: match[0] if match["name"] in names else "", text)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n"


def helpers(text, names, includes):
    """Returns the file rust/helpers/rdma.c with those helpers of ffi/helpers.c that have these NAMES."""
    found = {match["name"]: match for match in FUNCTION.finditer(text)}
    if missing := sorted(names - found.keys()):
        raise ValueError(f"efa_rs/ffi/helpers.c has no {', '.join(missing)}, which a file of upstream/series.toml calls: correct that.")
    # The core's functions are built in if the abstractions are.
    head = "".join(f"#include <{name}>\n" for name in includes)
    parts = [f"// SPDX-License-Identifier: GPL-2.0\n\n{head}\n#if IS_ENABLED(CONFIG_RUST_INFINIBAND_ABSTRACTIONS)\n"]
    for name, match in found.items():
        if name in names:
            arguments, rest = match["rest"].split("\n", 1)
            head = broken(f"__rust_helper {match['head']}rust_helper_{helper(name)}{arguments}")
            parts.append(f"{shorter(match['comment'] or '')}{head}\n{rest}")
    return "\n".join([*parts, "#endif\n"])


# The declaration of a module in rdma.rs, and a re-export of names from one.
MODULE = re.compile(r"^(?:#\[[^\n]*\]\n)*(?:pub |pub\(\w+\) )?mod (?P<name>\w+);\n", re.MULTILINE)
REEXPORT = re.compile(r"^(?P<attributes>(?:#\[[^\n]*\]\n)*)pub(?:\(crate\))? use (?P<tree>[^;]*);\n\n?", re.MULTILINE)


# An item that other modules of the crate may use.
ITEM = re.compile(r"^pub\(crate\) (?:unsafe |const )*(?:enum|struct|trait|fn|type|const|static) (?P<name>\w+)", re.MULTILINE)


def module(text, files, names, dead=()):
    """Returns the file rdma.rs with only the modules NAMES. Those in DEAD have items that only a later patch uses.

    FILES are the modules' texts. Items that are visible in the crate are exported in the tree, even if nothing in efa_rs/ imports them.
    """
    exports = [(match["attributes"], path) for match in REEXPORT.finditer(text) for path in leaves(match["tree"])]
    listed = [path for _, path in exports]
    found = [("self", name, match["name"]) for name, file in files.items() for match in ITEM.finditer(file)]
    others = {path: None for path in found if path not in listed}
    first = next((path[1] for attributes, path in exports if not attributes and path[0] == "self" and path[1] in names), None)
    # Not expect: the tests, which a configuration may leave out, use the items, too.
    allow = dict.fromkeys(dead, '#[allow(dead_code, reason = "the rest is used by a later patch")]\n')
    declared = [match["name"] for match in MODULE.finditer(text)]
    # The last declaration is followed by those of modules that rdma.rs does not have.
    more = "".join(f"{allow.get(name, '')}mod {name};\n" for name in names if name not in declared)

    def declare(match):
        name = match["name"]
        return (allow.get(name, "") + rewritten(match[0], TEXT)) * (name in names) + more * (name == declared[-1])

    def export(match):
        paths = {imported(path, PATHS): None for path in leaves(match["tree"])}
        paths = {path: None for path in paths if path[0] != "self" or path[1] in names}
        if not match["attributes"] and any(path[1] == first for path in paths):
            paths |= others
            others.clear()
        if not paths:
            return ""
        statements = imports(paths).split("\n\n")
        return "".join(f"{rewritten(match['attributes'], TEXT)}pub {statement}\n\n" for statement in statements if statement)

    missing = sorted({path[-1] for path in listed if path[0] == "self" and path[1] not in names} | {"-"})
    return ABOUT.sub(lambda match: about(match[0], names, missing), REEXPORT.sub(export, MODULE.sub(declare, text)))


# The documentation of rdma.rs, and words of its sentences that are not for the tree: build options, and the place in the tree.
ABOUT = re.compile(r"^//!.*?\n\n", re.MULTILINE | re.DOTALL)
NOT_THERE = re.compile(r"\bcfg\b|\bEFA\b|rust/kernel/rdma")


def about(text, names, missing):
    """Returns the documentation of rdma.rs for the modules NAMES, without the MISSING names."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text.replace("//!", "").strip())]
    # Paragraphs about providers are added together with the provider.
    paragraphs = paragraphs if "provider" in names else [paragraphs[0], paragraphs[-1]]
    kept = []
    for paragraph in paragraphs:
        whole = paragraph.replace(", with the `cfg` `rdma_client`,", "") if "client" in names else paragraph
        sentences = [sentence for sentence in re.split(r"(?<=[.]) ", whole) if not NOT_THERE.search(sentence)]
        said = " ".join(sentence for sentence in sentences if "kernel_qp" in names or "`kernel_*`" not in sentence)
        said = re.sub(rf"(?:, )?\[`(?:{'|'.join(missing)})`\]", "", said).replace(": .", ".")
        # In the tree, modules are private, so that links to them are removed.
        said = re.sub(r"\[(`(\w+)`)\]", lambda match: match[1] if match[2] in names else match[0], said)
        kept.append(textwrap.fill(said, WIDTH, initial_indent="//! ", subsequent_indent="//! ", break_long_words=False))
    return "\n//!\n".join(kept) + "\n\n"


# An attribute with a build option that only efa_rs/ has.
CONDITION = re.compile(
    r"^(?P<indent>[ \t]*)#\[cfg\((?P<condition>[^\n]*?(?:kverbs|rdma_client|in_tree)[^\n]*?)\)\](?:\n| (?=\w))", re.MULTILINE
)
# The beginning of an item or a statement, which no comma at the top level ends. Fields are no items.
KEYWORD = re.compile(
    r"\s*(?:#!?\[[^\]]*\]\s*)*(?!pub(?:\(\w+\))? \w+: )"
    r"(?:pub(?:\(\w+\))?|unsafe|const|static|type|fn|impl|use|mod|struct|enum|trait|let|if|macro_rules!)"
)
# The documentation and attributes before a place.
BEFORE = re.compile(r"(?:^[ \t]*(?:///|#\[)[^\n]*\n)*\Z", re.MULTILINE)


def holds(condition, on):
    """Whether a condition of cfg() holds if the names ON are set."""
    names: dict[str, object] = {name: name in {"in_tree", *on} for name in ("kverbs", "rdma_client", "in_tree")}
    names |= {"any": lambda *values: any(values), "all": lambda *values: all(values), "not_": operator.not_}
    # It consists of names that CONDITION has found.
    return eval(condition.replace("not(", "not_("), {"__builtins__": {}}, names)


# What follows a block that does not end an item or a statement.
CONTINUES = re.compile(r"[;,)?.]|\s*(?:else\b|\.)")


def item_end(text, start):
    """Returns the end of the item, statement or field that begins at START."""
    is_item = KEYWORD.match(text, start)
    depth = 0
    for match in re.compile(r"//[^\n]*|[][(){};,]").finditer(text, start):
        sign = match[0]
        if sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
            if depth < 0:
                return match.start()
            # The bracket of an attribute does not end the item that it belongs to.
            if depth == 0 and sign == "}" and not CONTINUES.match(text, match.end()):
                return match.end()
        elif depth == 0 and (sign == ";" or (sign == "," and not is_item)):
            return match.end()
    raise ValueError(f"An item has no end: {text[start : start + 80]!r}")


# A conditional attribute with such an option.
CONDITIONAL = re.compile(r"^#\[cfg_attr\(\s*not\((?P<name>kverbs|rdma_client)\),(?P<attribute>(?:[^\n]*\n)*?[^\n]*)\)\]\n", re.MULTILINE)


def resolved(text, on):
    """Removes the conditions of a file: names in ON are set, and the others are not."""
    text = CONDITIONAL.sub(lambda match: "" if match["name"] in on else f"#[{match['attribute'].strip()}]\n", text)
    while match := CONDITION.search(text):
        begin, end = match.span()
        if holds(match["condition"], on):
            text = text[:begin] + text[end:]
            continue
        before = BEFORE.search(text, 0, begin)
        begin = before.start() if before else begin
        rest = text[item_end(text, end) :]
        rest = re.sub(r"\A[^\n]*\n", "", rest) if not rest.startswith("\n") else rest[1:]
        # One of two blank lines is kept.
        text = text[:begin] + (rest.lstrip("\n") if text[:begin].endswith("\n\n") or text[:begin].endswith("{\n") else rest)
    return text


# A comment or a string, and a line that sets an associated type in an example.
COMMENTED = re.compile(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"')
EXAMPLE = re.compile(r"^\s*/// +type (?P<name>\w+)<'a> = \w+;\n", re.MULTILINE)
# The associated type of a kind of object.
KIND = re.compile(r"\btype (?P<name>\w+)<'a>:")


def plain(text):
    """The code of a file without imports, comments and strings, which become spaces."""
    return USE.sub(lambda match: " " * len(match[0]), COMMENTED.sub(lambda match: " " * len(match[0]), text))


def element(code, position):
    """Returns where the smallest item, statement or field that has a POSITION begins. CODE has no comments."""
    starts: list[int | None] = [0]
    for match in re.compile(r"[][(){};,]").finditer(code, 0, position):
        sign, end = match[0], match.end()
        if sign in "([{":
            # A block of unsafe code has one operation, and is empty without it.
            starts.append(end if sign == "{" and not code.endswith("unsafe ", 0, end - 1) else None)
        elif sign in ")]}":
            starts.pop()
            ends = sign == "}" and starts[-1] is not None and not CONTINUES.match(code, end)
            starts[-1] = end if ends else starts[-1]
        elif starts[-1] is not None and (sign == ";" or not KEYWORD.match(code, starts[-1])):
            starts[-1] = end
    return next(start for start in reversed(starts) if start is not None)


def reduced(text, modules, names, on):
    """Resolves a file, and leaves out the items, statements and fields that need NAMES or MODULES, and what only they import.

    Returns the rest, and the associated types that are left out.
    """
    before, kinds, text = set(re.findall(r"\w+", plain(text))), set(), resolved(text, on)
    used = {path: path[-1].split(" as ")[-1] for match in USE.finditer(text) for path in leaves(match["tree"])}
    missing = {name for path, name in used.items() if path[0] == "super" and path[1] in modules}
    missing |= {*names, *(f"HAS_{name.upper()}" for name in names)}
    pattern = re.compile(rf"\b(?:{'|'.join(sorted(missing))})\b") if missing else re.compile(r"(?!)")
    while match := pattern.search(code := plain(text)):
        begin = element(code, match.start())
        first = begin + len(code[begin:]) - len(code[begin:].lstrip())
        # Its own comments are those that no blank line separates from it.
        blank = text.rfind("\n\n", begin, first)
        begin = blank + 2 if blank >= 0 else text.find("\n", begin, first) + 1 or begin
        end = item_end(text, first)
        kinds |= {found["name"] for found in KIND.finditer(code, first, end)}
        text = text[:begin] + text[end:].removeprefix("\n")
    lost = before - set(re.findall(r"\w+", plain(text)))

    def keep(match):
        paths = [path for path in leaves(match["tree"]) if used[path] not in missing | lost]
        return imports(paths)[:-1].join([match["attributes"], ""]) if paths else ""

    text = EXAMPLE.sub(lambda match: "" if match["name"] in missing else match[0], text)
    return USE.sub(keep, text) if missing | lost else text, kinds


# A paragraph of comments, or an entry of a list, whose further lines are indented.
PARAGRAPH = re.compile(
    r"^(?P<prefix>[ \t]*//[/!]? )(?P<item>- )?\S.*(?:\n(?P=prefix)(?(item)  )(?!- |#|```|(?:SAFETY|INVARIANT|CAST):)\S.*)*", re.MULTILINE
)


def wrapped(text):
    """Refills the paragraphs of comments that have too long lines."""

    def fill(match):
        prefix = match["prefix"]
        indent = prefix + "  " * bool(match["item"])
        words = match[0].removeprefix(prefix).replace(f"\n{indent}", " ")
        if max(map(len, match[0].split("\n"))) <= WIDTH:
            return match[0]
        wrapper = textwrap.TextWrapper(
            WIDTH, initial_indent=prefix, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        return wrapper.fill(words)

    return PARAGRAPH.sub(fill, text)
