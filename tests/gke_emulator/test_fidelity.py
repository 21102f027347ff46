"""Responses of the emulator use Google's published types, and have all output fields of these."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud import container_v1, container_v1beta1
from google.cloud.container_v1 import Cluster, NodePool, Operation, ServerConfig, types
from google.cloud.container_v1.services.cluster_manager.transports import ClusterManagerGrpcTransport
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from tests.gke_emulator.cloud import PARENT, Cloud
from tools.gke_emulator import PoolFault
from tools.gke_emulator.emulator import GkeEmulator
from tools.gke_emulator.service import SERVICE, handlers

_BETA_MESSAGES = ("CreateNodePoolRequest", "GetNodePoolRequest", "NodePool", "Operation")
# Output fields that a healthy cluster, node pool or operation does not have, and the reason.
ABSENT = {
    "Cluster": {
        "current_emulated_version": "no version is emulated",
        "node_ipv4_cidr_size": "only with routes",
        "expire_time": "only alpha clusters expire",
        "tpu_ipv4_cidr_block": "only with TPU nodes of the old kind",
        "status_message": "only with an error",
        "satisfies_pzs": "reserved",
        "satisfies_pzi": "reserved",
    },
    "NodePool": {
        "status_message": "only with an error",
        "conditions": "only with an error",
        "update_info": "only during blue-green upgrades",
        "kubelet_cert_info": "not emulated",
    },
    "Operation": {
        "detail": "only with an error",
        "status_message": "only with an error",
        "error": "only with an error",
        "progress": "only before the end",
    },
    "ServerConfig": {},
}


class RecordingChannel:
    """Replaces a channel: records the types that the client uses for each method."""

    def __init__(self) -> None:
        self.spoken: dict[str, tuple[Any, Any]] = {}

    def unary_unary(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> None:
        """Record a method's types; those of Google's empty message have no class here."""
        name = method.rpartition("/")[2]
        self.spoken[name] = (request_serializer.__self__, getattr(response_deserializer, "__self__", None))


@pytest.fixture(scope="module")
def spoken() -> dict[str, tuple[Any, Any]]:
    """Return every method of ClusterManager with the types of its request and response, from Google's client."""
    transport: Any = ClusterManagerGrpcTransport.__new__(ClusterManagerGrpcTransport)
    transport._stubs, transport._logged_channel = {}, RecordingChannel()
    for name, member in vars(ClusterManagerGrpcTransport).items():
        if isinstance(member, property) and name not in ("grpc_channel", "kind"):
            getattr(transport, name)
    result: dict[str, tuple[Any, Any]] = transport._logged_channel.spoken
    return result


def parts(message: Any) -> Iterator[Any]:
    """Return a message and all messages in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"].message_type
            yield from (part for item in value.values() for part in parts(item)) if inner else ()
        else:
            for item in value if field.is_repeated else [value]:
                yield from parts(item)


def assert_published(message: Any) -> None:
    """Check that a message has only fields of its published type."""
    for part in parts(message):
        assert len(UnknownFieldSet(part)) == 0, part
        for field, value in part.ListFields():
            if field.enum_type is not None:
                for number in value if field.is_repeated else [value]:
                    assert number in field.enum_type.values_by_number, f"{field.full_name} = {number}"


def output_only(kind: type) -> set[str]:
    """Return the fields that Google's documentation of a type calls output only."""
    text = kind.__doc__ or ""
    everything = "All fields are output" in re.sub(r"\s+", " ", text)
    result = set()
    for match in re.finditer(r"^ {8}(\w+) \([^\n]*\):\n((?: {12}[^\n]*\n|\n)+)", text, re.M):
        if everything or match[2].lstrip().startswith("Output only"):
            result.add(match[1])
    return result


def assert_complete(message: Any) -> None:
    """Check that a message has all of its output fields, except those of `ABSENT`."""
    kind = type(message)
    expected = output_only(kind) - {"cluster_conditions", "nodepool_conditions"} - set(ABSENT[kind.__name__])
    raw = kind.pb(message)
    empty = [name for name in expected if not getattr(raw, name)]
    assert not empty, f"{kind.__name__} lacks {empty}"


def test_documented_output_fields_are_found() -> None:
    assert {"endpoint", "status", "self_link", "create_time"} <= output_only(Cluster)
    assert {"instance_group_urls", "status", "etag"} <= output_only(NodePool)
    assert {"name", "operation_type", "start_time"} <= output_only(Operation)


def test_methods_use_googles_types(spoken: dict[str, tuple[Any, Any]]) -> None:
    with GkeEmulator() as gke:
        answered = handlers(gke.plane)
    assert set(answered) <= set(spoken)
    for name, (request, _) in answered.items():
        assert getattr(types, request) is spoken[name][0], name


def test_methods_that_are_not_emulated_are_rejected(
    emulate: Callable[..., Cloud], spoken: dict[str, tuple[Any, Any]]
) -> None:
    import grpc

    cloud = emulate()
    rest = set(spoken) - set(handlers(cloud.gke.plane))
    assert "SetMasterAuth" in rest
    for name in rest:
        call = cloud.channel.unary_unary(f"/{SERVICE}/{name}", lambda _: b"", lambda data: data)
        with pytest.raises(grpc.RpcError) as raised:
            call(None)
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED, name


def answers(cloud: Cloud, spoken: dict[str, tuple[Any, Any]], method: str, **fields: Any) -> Any:
    """Call a method; return the response on the wire, parsed with Google's type."""
    request, response = spoken[method]
    call = cloud.channel.unary_unary(f"/{SERVICE}/{method}", request.serialize, lambda data: data)
    return response.pb().FromString(call(request(**fields)))


def test_every_answer_fits_its_type_and_has_its_output_fields(
    emulate: Callable[..., Cloud], spoken: dict[str, tuple[Any, Any]]
) -> None:
    cloud = emulate(faults=(PoolFault("stockout", name="red-np-1"),))
    name = cloud.running_cluster()
    failed = [cloud.done(cloud.create_slice(number)) for number in (0, 1)][1]
    assert failed.error.code
    asked = {
        "GetServerConfig": {"name": PARENT}, "ListClusters": {"parent": PARENT}, "GetCluster": {"name": name},
        "ListNodePools": {"parent": name}, "GetNodePool": {"name": f"{name}/nodePools/red-np-0"},
        "ListOperations": {"parent": PARENT}, "GetOperation": {"name": f"{PARENT}/operations/{failed.name}"},
    }  # fmt: skip
    for method, fields in asked.items():
        assert_published(answers(cloud, spoken, method, **fields))
    begun = [
        cloud.client.set_node_pool_size({"name": f"{name}/nodePools/red-np-0", "node_count": 0}),
        cloud.client.delete_node_pool(name=f"{name}/nodePools/red-np-1"),
    ]
    for operation in begun:
        assert_published(Operation.pb(operation))
        assert_complete(cloud.done(operation))
    assert_complete(cloud.client.get_server_config(name=PARENT))
    cluster = cloud.client.get_cluster(name=name)
    assert_complete(cluster)
    for pool in cluster.node_pools:
        assert_complete(pool)
    assert {type(item).__name__ for item in (cluster, cluster.node_pools[0], ServerConfig(), begun[0])} == set(ABSENT)


def test_absent_fields_are_documented_as_output_only() -> None:
    for name, fields in ABSENT.items():
        assert set(fields) <= output_only(getattr(types, name)), name


def test_node_pools_of_both_versions_have_the_same_fields_on_the_wire() -> None:
    """Messages that the emulator stores as v1 are valid as v1beta1."""
    seen: set[str] = set()
    left = [(getattr(container_v1, name).pb(), getattr(container_v1beta1, name).pb()) for name in _BETA_MESSAGES]
    while left:
        one, other = left.pop()
        ours = {field.name: field for field in one.DESCRIPTOR.fields}
        for field in other.DESCRIPTOR.fields:
            if (twin := ours.get(field.name)) is None:
                assert field.number not in {item.number for item in ours.values()}, f"{field.full_name} takes another's"
                continue
            assert (twin.number, twin.type, twin.is_repeated) == (field.number, field.type, field.is_repeated)
            if field.message_type and field.message_type.full_name not in seen:
                seen.add(field.message_type.full_name)
                left.append((GetMessageClass(twin.message_type), GetMessageClass(field.message_type)))
