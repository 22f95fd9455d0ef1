# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""QEMU's command line, and whether KVM can be used."""

import contextlib
import json
import os
import re
import subprocess
from pathlib import Path

from . import arm64, build, cache, remote, steps, toolroot, topology
from .patience import PATIENCE

RUN = "/run/efa-rs/run"
# Limit on devices with a slot each. Of more, eight share a slot: the root bus has 32 slots, of which the guest needs some for itself.
OWN_SLOTS = 16
FIRST_SHARED_SLOT = 0x10
# Milliseconds that QEMU waits for a reply of the emulator. After that, the device has failed permanently. QEMU's default of 5 s is too
# short on a busy host. QEMU notices the end of an emulator at once.
ANSWER_LIMIT = PATIENCE * 1000
# CPU flags of hardware virtualization. Without these, KVM is not Linux's own, as in some virtual machines. A stock kernel is so slow
# under it that it seems to hang.
VIRTUALIZATION = re.compile(r"^flags\s*:.*\b(?:vmx|svm)\b", re.MULTILINE)
# The CPUs with fewest features, which are cheapest to emulate, and with all that TCG has: x86-64-v3, but no AVX-512. The second can't
# be made from the first: a kernel hangs at boot with some of the features in between.
LEAST, MOST = "qemu64", "max"
# The firmware that starts a kernel without delay, but sets up only the first root bus. SeaBIOS, QEMU's default, sets up all.
QBOOT, SEABIOS = ("-bios", "qboot.rom"), ()
KVM, CPUS, BOOT = Path("/dev/kvm"), Path("/proc/cpuinfo"), Path("/proc/sys/kernel/random/boot_id")


def machine(kernel, accelerator, memory, cpus, append, features=LEAST, threads=False, firmware=QBOOT, nodes=1):
    """A PC whose root file system is a virtiofs share called "root", and whose memory other processes can map.

    FEATURES are an emulated CPU's model and more features, such as "qemu64,+erms". Without THREADS, emulated CPUs take turns in one thread.
    Each of its NODES has a share of CPUs and memory.
    """
    turns = ",thread=single" if accelerator == "tcg" and not threads else ""
    return [
        *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
        *("-machine", "q35", "-accel", f"{accelerator}{turns}"),
        *("-cpu", "host" if accelerator == "kvm" else features, "-m", memory),
        *resources(memory, cpus, nodes),
        *(*firmware, "-kernel", kernel),
        # An emulated timer is late on a busy host; a kernel that then takes it for broken may not boot.
        *("-append", f"console=ttyS0 no_timer_check root=root rootfstype=virtiofs ro panic=-1 {append}"),
    ]


def resources(memory, cpus, nodes):
    """CPUs, and MEMORY that other processes can map, divided between NODES in their order."""
    if nodes == 1:
        memory_options = ("-machine", "memory-backend=memory", "-object", f"memory-backend-memfd,id=memory,size={memory},share=on")
        return ["-smp", str(cpus), *memory_options]
    megabytes = int(memory[:-1]) * {"M": 1, "G": 1024}[memory[-1]]
    # Linux warns if CPUs of one socket, which share a cache, belong to several nodes.
    options = ["-smp", f"{cpus},sockets={cpus}"]
    for node in range(nodes):
        first, end = cpus * node // nodes, cpus * (node + 1) // nodes
        of_node = f",cpus={first}-{end - 1}" if first < end else ""
        # QEMU rejects nodes whose memory is less than that of the machine.
        share = megabytes * (node + 1) // nodes - megabytes * node // nodes
        options += ["-object", f"memory-backend-memfd,id=memory{node},size={share}M,share=on"]
        options += ["-numa", f"node,nodeid={node},memdev=memory{node}{of_node}"]
    return options


def secure_boot(code, variables):
    """UEFI firmware with Secure Boot in place of the usual one. CODE is its file, VARIABLES the file with its state and keys."""
    return [
        # Only the firmware, in system management mode, may write the variables.
        *("-machine", "smm=on", "-global", "driver=cfi.pflash01,property=secure,value=on"),
        *("-drive", f"if=pflash,format=raw,unit=0,file={code},readonly=on"),
        *("-drive", f"if=pflash,format=raw,unit=1,file={variables}"),
    ]


def share(tag, socket, queue_size=1024):
    """A virtiofs share served by the virtiofsd that listens at SOCKET."""
    return [
        *("-chardev", f"socket,id={tag},path={socket}"),
        *("-device", f"vhost-user-fs-pci,chardev={tag},tag={tag},queue-size={queue_size}"),
    ]


def efa(socket, synchronous=False):
    """A PCI device served by the emulator that listens at SOCKET; if SYNCHRONOUS, the CPU waits for its writes to arrive."""
    device = {"driver": "vfio-user-pci", "rombar": 0, "x-msg-timeout": ANSWER_LIMIT, "socket": {"type": "unix", "path": socket}}
    if synchronous:
        device["x-no-posted-writes"] = True
    return device


def endpoints(devices, where):
    """Returns the options for devices in a topology WHERE. If it has no root buses, they are on the machine's, in order of address."""
    parts, of_devices = where.places(len(devices))
    of_devices = of_devices or [places(number, len(devices)) for number in range(len(devices))]
    placed = [{**description, **place} for description, place in zip(devices, of_devices, strict=True)]
    return [option for description in [*parts, *placed] for option in device(description)]


def places(number, count):
    """The place of device NUMBER of COUNT: the next free slot or, if there are too many, the next function."""
    if count <= OWN_SLOTS:
        return {}
    return {"addr": f"{FIRST_SHARED_SLOT + number // 8:x}.{number % 8}", "multifunction": True}


def memory_device(file, size):
    """A device with SIZE bytes of memory in its BAR 2, which is FILE of the host, in a slot of its own, and an IOMMU for it."""
    return [
        # caching-mode lets devices outside of QEMU follow the IOMMU's mappings.
        *device({"driver": "intel-iommu", "caching-mode": True}),
        *("-object", f"memory-backend-file,id=bar,mem-path={file},size={size},share=on"),
        *device({"driver": "pcie-root-port", "id": "memory-port", "chassis": 2, "slot": 1}),
        *device({"driver": "ivshmem-plain", "id": "memory-device", "memdev": "bar", "bus": "memory-port"}),
    ]


def hotplug(devices, monitor, foreign=False):
    """The options for devices in slots of their own, which Linux's pciehp manages, and for QEMU's monitor as a port of the guest.

    QEMU listens at MONITOR and connects to itself. See tools/guest/monitor.py.
    """
    # The port has no power controller: when a guest switches a slot off, QEMU deletes its device. Up to 11.1, QEMU aborts then for a
    # vfio-user device, as vfio_user_msix_teardown() tears MSI-X down twice.
    port = {"driver": "pcie-root-port", "chassis": 1, "power_controller_present": False, **topology.LINK}
    options = [] if foreign else ["-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"]
    # The firmware numbers buses from the last port on. In this order of ports, the devices' addresses are in order.
    for position, number in enumerate(reversed(range(len(devices)))):
        place = places(position, len(devices))
        options += device({**port, "id": f"port{number}", "port": number, "slot": number + 1, **place})
    for number, description in enumerate(devices):
        options += device({**description, "id": f"efa{number}", "bus": f"port{number}"})
    return [
        *options,
        *("-chardev", f"socket,id=monitor,path={monitor},server=on,wait=off", "-object", "monitor-qmp,id=monitor,chardev=monitor"),
        *("-chardev", f"socket,id=monitor-port,path={monitor}", "-device", "virtserialport,chardev=monitor-port,name=qemu.monitor"),
    ]


def device(description):
    """The option that adds a device."""
    return ["-device", json.dumps(description)]


def count_instructions(plugin, output):
    """Returns the options for tests/bench/count.rs, built as PLUGIN, which counts the instructions that the guest marks."""
    return ["-plugin", f"file={plugin},output={output}"]


def control(socket):
    """The emulator's control socket, as a port of the guest.

    The port belongs to the terminal's device. The guest's file systems refuse a suspend before it would close that device.
    """
    return [
        *("-chardev", f"socket,id=control,path={socket}"),
        *("-device", "virtserialport,chardev=control,name=efa-emu.control"),
    ]


def host_id(guest):
    """The instance's id, as EC2 has it in board_asset_tag, by which libfabric distinguishes hosts."""
    return ["-smbios", f"type=2,asset=i-{0xEFA000 + guest:017x}"]


def network(guest, guests):
    """A network card on a hub, which is in guest 0 and to which the others connect."""
    if guests == 1:
        return []
    mac = f"52:54:00:ef:a0:{guest:02x}"
    options = ["-device", f"virtio-net-pci,netdev=card,mac={mac},romfile="]
    if guest:
        return [*options, "-netdev", f"stream,id=card,server=off,addr.type=unix,addr.path={RUN}/net{guest},reconnect-ms=200"]
    options += ["-netdev", "hubport,id=card,hubid=0"]
    for other in range(1, guests):
        options += [
            *("-netdev", f"stream,id=guest{other},server=on,addr.type=unix,addr.path={RUN}/net{other}"),
            *("-netdev", f"hubport,id=port{other},hubid=0,netdev=guest{other}"),
        ]
    return options


def agent(socket):
    """Returns the options for a network card that connects only to this host, whose programs reach the agent at a unix SOCKET.

    The card is not on the hub, where QEMU's own TCP stack would answer packets for other guests.
    """
    host = f"user,id=host,net=10.0.1.0/24,ipv6=off,restrict=on,hostfwd=unix:{socket}-10.0.1.1:{remote.PORT}"
    return ["-netdev", host, "-device", "virtio-net-pci,netdev=host,mac=52:54:00:ef:a1:00,romfile="]


def accelerator(release=""):
    """KVM if a guest really boots with it, else TCG."""
    if arm64.is_release(release) or not os.access(KVM, os.R_OK | os.W_OK) or not VIRTUALIZATION.search(CPUS.read_text()):
        return "tcg"
    # The result is valid until the host reboots: another kernel may have another KVM.
    name = f"kvm-{cache.key(toolroot.key(), BOOT.read_text())}"
    answer = cache.folder() / name
    with cache.lock("kvm"):
        if not answer.exists():
            with steps.step("does KVM work?"):
                found = "kvm" if boots_with_kvm() else "tcg"
            for old in cache.folder().glob("kvm-*"):
                old.unlink()
            cache.write(answer, found)
        return answer.read_text()


def boots_with_kvm():
    """Whether a kernel gets as far as to miss its root file system, after which QEMU ends."""
    image, binds = build.image(toolroot.kernel("cloud-amd64"))
    command = [*machine(image, "kvm", "512M", 1, ""), "-serial", "stdio"]
    log = cache.folder("logs") / "kvm.log"
    with open(log, "w") as output:
        inside = build.in_toolroot(command, binds)
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(inside, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, timeout=PATIENCE, check=False)
    return "Unable to mount root" in log.read_text(errors="replace")
