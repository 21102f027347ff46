"""Removal of what xpk has created for a cluster of another tool, and remains of interrupted commands."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.capacity.adapted.nodes import node
from tests.capacity.adapted.site import Site, gke
from xpk.capacity.kubeconfig import write_private
from xpk.capacity.queues.planning import plan_create
from xpk.capacity.queues.request import QueueRequest
from xpk.model.accelerators import find_shape
from xpk.model.errors import UsageError, XpkError

POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


def test_policies_of_queues_with_a_priority_limit_are_removed_with_them(tmp_path: Path) -> None:
    site = Site(tmp_path, gke())
    site.adapt(output_root="gs://b/x")
    request = QueueRequest(name="red", namespaces=("red",), quota=("1",), max_priority="low", create_namespace=True)
    plan_create(site.api, request).carry_out(lambda title: None)
    assert all(site.api.list(kind, None) for kind in POLICIES)
    site.provider.plan_delete("mine", force=False).carry_out(lambda title: None)
    assert not any(site.api.list(kind, None) for kind in (*POLICIES, "ClusterQueue", "LocalQueue"))


def test_an_adapt_that_was_interrupted_while_it_saved_the_connection_can_be_repeated(tmp_path: Path) -> None:
    site = Site(tmp_path, gke())
    (site.state / "adapted" / "mine").mkdir(parents=True)
    assert site.provider.names() == []
    site.adapt(output_root="gs://b/x")
    assert site.provider.names() == ["mine"]


@pytest.mark.parametrize("content", ["[", "3", "{}", "\0"])
def test_a_damaged_connection_is_named_with_the_next_step(tmp_path: Path, content: str) -> None:
    site = Site(tmp_path, gke())
    site.adapt(output_root="gs://b/x")
    file = site.state / "adapted" / "mine" / "kubeconfig"
    file.write_text(content)
    with pytest.raises(XpkError, match="kubeconfig is damaged") as caught:
        site.plan()
    assert caught.value.hint == "remove it, then `xpk cluster adapt mine --context CONTEXT`"


def test_a_full_disk_leaves_no_part_of_a_private_file_behind(tmp_path: Path) -> None:
    target = tmp_path / "kubeconfig"
    target.mkdir()  # the new file cannot replace it
    with pytest.raises(XpkError, match="cannot write to"):
        write_private(target, "secret")
    assert [entry.name for entry in tmp_path.iterdir()] == ["kubeconfig"]


def test_slices_that_cannot_be_emulated_are_refused(tmp_path: Path) -> None:
    site = Site(tmp_path, [node("worker-0")])
    with pytest.raises(UsageError) as caught:
        site.plan(emulated=True, shape=find_shape("n2-standard-32-4"), num_slices=-1)
    assert caught.value.problems == (
        "--num-slices must be between 1 and 1024, got -1",
        "--emulated: n2-standard-32-4 has no accelerator to advertise: use a TPU or GPU type",
    )


def test_a_name_that_gets_another_server_is_noted(tmp_path: Path) -> None:
    site = Site(tmp_path, gke())
    site.adapt(output_root="gs://b/x")
    assert site.plan(context="theirs").notes == (), "the same server, perhaps with newer credentials"
    config = yaml.safe_load(site.user.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://staging"
    site.user.write_text(yaml.safe_dump(config))
    (note,) = site.plan(context="theirs").notes
    assert note.startswith("warning: 'mine' is the name of https://") and "of https://staging from now on" in note
