"""The limits of Kubernetes and JobSet for names, computed from the names that they derive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpk.model.names import (
    cluster_name_problems,
    env_problems,
    host_name,
    name_and_flags,
    node_folder_problems,
    qualified,
    subdomain,
    workload_name_problems,
)

NAMES = st.from_regex(r"[a-z][-a-z0-9]{0,60}[a-z0-9]", fullmatch=True)


@given(NAMES, st.integers(1, 1024), st.integers(1, 4096))
def test_a_name_is_valid_if_and_only_if_its_host_names_fit(name: str, num_slices: int, hosts: int) -> None:
    pod = f"{name}-slice-job-{num_slices - 1}-{hosts - 1}-abcde"
    fits = len(pod) <= 63 and len(host_name(name, 0, 0)) <= 63
    assert (workload_name_problems(name, num_slices=num_slices, hosts_per_slice=hosts) == []) == fits


@given(NAMES, st.integers(1, 1024), st.integers(1, 4096))
def test_the_suggested_length_fits(name: str, num_slices: int, hosts: int) -> None:
    problems = workload_name_problems(name, num_slices=num_slices, hosts_per_slice=hosts)
    if problems:
        most = int(problems[0].split("at most ")[1].split()[0])
        assert workload_name_problems(name[:most].rstrip("-"), num_slices=num_slices, hosts_per_slice=hosts) == []


@pytest.mark.parametrize("name", ["", "Demo", "1demo", "demo-", "-demo", "de_mo", "de.mo", "dé", "a b", "demo\n"])
def test_names_that_are_not_dns_labels_are_rejected(name: str) -> None:
    assert "is not a DNS label" in workload_name_problems(name, num_slices=1, hosts_per_slice=1)[0]
    assert "is not a DNS label" in cluster_name_problems(name)[0]


def test_cluster_names_have_gkes_length() -> None:
    assert cluster_name_problems("a" * 40) == []
    assert "at most 40" in cluster_name_problems("a" * 41)[0]


@pytest.mark.parametrize("folder", ["/dev/shm", "/mnt/disks/ssd0", "/tmp", "/var/ram disk"])
def test_host_path_folders(folder: str) -> None:
    assert node_folder_problems(folder, "/shared/output") == []


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("ram", "must be an absolute path"),
        ("/mnt/../etc", "must be an absolute path"),
        ("/mnt/a:b", "must be an absolute path"),
        ("/", "hide files of the hosts' image"),
        ("/usr/lib", "hide files of the hosts' image"),
        ("/dev", "hide files of the hosts' image"),
        ("/shared", "hide /shared/output"),
        ("/shared/output/a", "hide /shared/output"),
    ],
)
def test_invalid_host_path_folders_are_rejected(folder: str, says: str) -> None:
    (problem,) = node_folder_problems(folder, "/shared/output")
    assert says in problem


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("1A", "x", "cannot be an environment variable"),
        ("A-B", "x", "cannot be an environment variable"),
        ("XPK_WORKLOAD", "x", "is set by xpk"),
        ("TPU_WORKER_ID", "x", "is set by xpk"),
        ("A", "x\0y", "NUL"),
        ("A", "\udcff", "UTF-8"),
    ],
)
def test_invalid_variables_are_rejected(name: str, value: str, says: str) -> None:
    assert says in env_problems(name, value)[0]


def test_commands_use_the_namespace_of_the_workload() -> None:
    assert name_and_flags(qualified("train", "default"), "dev") == "train --cluster dev"
    assert name_and_flags(qualified("train", "team-a"), "dev") == "train --cluster dev --namespace team-a"


@pytest.mark.parametrize("length", [1, 24, 25, 40])
def test_names_of_up_to_forty_characters_fit_199_slices_of_64_hosts(length: int) -> None:
    name = "a" * length
    assert workload_name_problems(name, num_slices=199, hosts_per_slice=64) == []
    assert len(f"{name}-slice-job-198-63-abcde") <= 63
    assert len(host_name(name, 0, 0)) <= 63


def test_longer_names_have_their_own_service() -> None:
    first, second = (subdomain("train-the-large-model-on-" + which) for which in ("v5e", "v6e"))
    assert first != second and {len(first), len(second)} == {8}
    assert subdomain("a" * 24) == "a" * 24  # existing ones keep theirs
