"""Networks for GPUDirect-TCPX and -TCPXO: a VPC network for each data NIC of an A3 High or A3 Mega host. Pure.

They follow the manual setup in Google's documents (docs/gke.md, "Networks of GPU hosts"). Later GPUs and v6e use
RDMA or NICs that GKE manages: the accelerator network profile.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xpk.capacity.gke.desired.limits import RESERVED_ADDRESSES, Limit, free_quota
from xpk.model.accelerators import SliceShape

Dict = dict[str, Any]

DATA_NICS = {"h100-80gb": 4, "h100-mega-80gb": 8}  # per host, in addition to the one of all hosts
PARTS = ("network", "subnetwork", "firewall")  # in order of creation
MTU = 8244  # of the data networks: the largest that GPUDirect-TCPX and -TCPXO take
_SPACE = ipaddress.ip_network("192.168.0.0/16")
_SMALLEST, _LARGEST = 24, 20  # prefix lengths of a subnetwork: 252 hosts, and 4,092; there are too few larger ones


@dataclass(frozen=True, slots=True, kw_only=True)
class DataNetwork:
    """One data network of a cluster: its resource names in Compute Engine, and its subnetwork's addresses."""

    network: str
    subnetwork: str
    firewall: str
    block: str

    @property
    def config(self) -> Dict:
        """Return the network's AdditionalNodeNetworkConfig of GKE's API, for node pools."""
        return {"network": self.network, "subnetwork": self.subnetwork}

    @property
    def names(self) -> tuple[str, str, str]:
        """Return the names of `PARTS`."""
        return self.network, self.subnetwork, self.firewall

    @property
    def parts(self) -> Dict:
        """Return the names of its resources, by part."""
        return {part: {"name": name} for part, name in zip(PARTS, self.names, strict=True)}

    def bodies(self, project: str, description: str) -> Dict:
        """Return the request bodies of networks.insert, subnetworks.insert and firewalls.insert."""
        common = {"network": f"projects/{project}/global/networks/{self.network}", "description": description}
        anything = [{"IPProtocol": protocol, "ports": ["0-65535"]} for protocol in ("tcp", "udp")]
        return {
            "network": {
                "name": self.network, "autoCreateSubnetworks": False, "mtu": MTU, "description": description,
                "routingConfig": {"routingMode": "REGIONAL"},
            },
            "subnetwork": {"name": self.subnetwork, "ipCidrRange": self.block, **common},
            "firewall": {
                "name": self.firewall, "direction": "INGRESS", "sourceRanges": [str(_SPACE)],
                "allowed": [*anything, {"IPProtocol": "icmp"}], **common,
            },
        }  # fmt: skip


def data_networks(cluster: str, region: str, shape: SliceShape, hosts: int) -> list[DataNetwork]:
    """Return the data networks of a type's slices, named as in Google's xpk; none for most types.

    Each subnetwork has addresses for `hosts`, or the maximum: within a cluster, ranges must not overlap.
    """
    if shape.family not in DATA_NICS:
        return []
    prefix = min(_SMALLEST, max(_LARGEST, 32 - math.ceil(math.log2(hosts + RESERVED_ADDRESSES))))
    blocks = list(_SPACE.subnets(new_prefix=prefix))
    numbers = range(1, DATA_NICS[shape.family] + 1)
    return [data_network(cluster, region, number, str(blocks[number])) for number in numbers]


def data_network(cluster: str, region: str, number: int | str, block: str = "") -> DataNetwork:
    """Return one data network of a cluster by its number."""
    return DataNetwork(
        network=network_name(cluster, number),
        subnetwork=f"{cluster}-{region}-sub-{number}",
        firewall=f"{cluster}-internal-{number}",
        block=block,
    )


def network_name(cluster: str, number: int | str) -> str:
    """Return the name of a cluster's data network."""
    return f"{cluster}-net-{number}"


def description(cluster: str, location: str) -> str:
    """Return the description of networks that xpk creates; deleting a cluster identifies them by it."""
    return f"made by xpk for cluster {cluster} in {location}"


def ours(listed: Iterable[Mapping[str, Any]], cluster: str, location: str) -> list[str]:
    """Return the names of the networks that xpk created for a cluster."""
    text = description(cluster, location)
    return sorted(str(network["name"]) for network in listed if network.get("description") == text)


def network_limits(
    networks: Sequence[DataNetwork],
    resources: Mapping[str, Mapping[str, Any]],
    hosts: int,
    project: Mapping[str, Any] | None,
) -> list[Limit]:
    """Return the limits of data networks: the project's quotas, and the hosts that fit into the smallest subnetwork.

    `resources`: existing resources by name; `project`: None if this user may not read its quotas.
    """
    blocks = [str(resources.get(network.subnetwork, {}).get("ipCidrRange") or network.block) for network in networks]
    least = min(ipaddress.ip_network(block, strict=False).num_addresses for block in blocks) - RESERVED_ADDRESSES
    missing = [
        [name for name in names if name not in resources]
        for names in zip(*(network.names for network in networks), strict=True)
    ]
    advice = "request more at https://console.cloud.google.com/iam-admin/quotas"
    return [
        *(
            Limit(f"quota {metric}", len(names), free_quota(project, metric), advice)
            for metric, names in zip(("NETWORKS", "SUBNETWORKS", "FIREWALLS"), missing, strict=True)
        ),
        Limit("addresses in each data network of the GPUs", hosts, least, "use another cluster for the other hosts"),
    ]
