# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Where the devices of an EC2 instance are: NUMA nodes, PCI root buses and switches."""

from dataclasses import dataclass

# Distance in bus numbers between the first root buses of two nodes, and between two root buses of a node.
NODE_BUSES, ROOT_BUSES = 0x80, 0x10

# Limit on the link of a port, which is otherwise that of its device.
LINK = {"x-speed": "64", "x-width": "16"}


@dataclass(frozen=True)
class Topology:
    """Root buses, each with the same number of devices."""

    # Number of NUMA nodes.
    nodes: int = 1
    # Number of root buses of each node with devices, besides the machine's own. If 0, the devices are on that one.
    buses: int = 0
    # Whether the devices of a root bus are behind a switch, else each has a root port.
    switches: bool = False

    def places(self, count):
        """The parts that COUNT devices need, and the place of each device: properties of QEMU's devices."""
        parts, places = [], []
        total = self.nodes * self.buses
        for number in range(total):
            node, index = divmod(number, self.buses)
            bus = f"root{number}"
            bus_number = NODE_BUSES * node + ROOT_BUSES * (index + 1)
            parts.append({"driver": "pxb-pcie", "id": bus, "bus": "pcie.0", "bus_nr": bus_number, "numa_node": node})
            port = {"driver": "pcie-root-port", "chassis": number + 1, "hotplug": False, **LINK}
            # QEMU's switches have links of 2.5 GT/s x1, which tools take for the limit of devices behind them. A root port with more
            # root ports behind it is a switch to tools, too.
            if self.switches:
                parts.append({**port, "id": f"switch{number}", "bus": bus})
                bus = f"switch{number}"
            devices = range(count * number // total, count * (number + 1) // total)
            for function, device in enumerate(devices):
                place = {"addr": f"0.{function}", "multifunction": True} if self.switches else {}
                parts.append({**port, **place, "id": f"port{device}", "bus": bus, "slot": device + 1})
                places.append({"bus": f"port{device}"})
        return parts, places


# From topology/ of aws-ofi-nccl: p4d has the root buses 10, 20, 90 and a0, and p5 a switch for each of its GPUs.
P4D, P5 = Topology(2, 2), Topology(2, 4, switches=True)
OF_INSTANCES = {"p4d.24xlarge": P4D, "p4de.24xlarge": P4D, "p5.48xlarge": P5, "p5e.48xlarge": P5}


def of(instance):
    """Returns the topology of INSTANCE, which may have options behind its name, or of devices without an instance."""
    name, _, _ = (instance or "").partition(",")
    return OF_INSTANCES.get(name, Topology())
