"""`--mount`: mounts round-trip, and all problems of unsupported ones are reported."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpk.model.mounts import Mount, mount_problems, parse_mounts

NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?", fullmatch=True)
PARTS = st.from_regex(r"[A-Za-z0-9_=][A-Za-z0-9_= .-]{0,10}[A-Za-z0-9_=]", fullmatch=True)
FOLDERS = st.lists(PARTS, min_size=1, max_size=3).map("/".join)
TARGETS = FOLDERS.map("/mnt/{}".format)
BUCKETS = st.from_regex(r"[a-z0-9][a-z0-9._-]{1,30}[a-z0-9]", fullmatch=True)
CLAIMS = st.builds(
    Mount, source=NAMES, target=TARGETS, sub_path=st.one_of(st.just(""), FOLDERS), read_only=st.booleans()
)
IN_BUCKETS = st.builds(
    Mount,
    source=st.builds("gs://{}{}".format, BUCKETS, st.one_of(st.just(""), FOLDERS.map("/{}".format))),
    target=TARGETS,
    read_only=st.booleans(),
)
WORDS = st.sampled_from(
    [
        "source",
        "src",
        "target",
        "dst",
        "readonly",
        "ro",
        "subpath",
        "=",
        ",",
        "/",
        "..",
        "gs://",
        ":",
        "data",
        "/mnt",
        "\n",
    ]
)


def written(mount: Mount) -> str:
    """Return a mount in the user's format."""
    parts = [f"source={mount.source}", f"target={mount.target}"]
    parts += [f"subpath={mount.sub_path}"] if mount.sub_path else []
    return ",".join([*parts, *(["readonly"] if mount.read_only else [])])


@given(st.one_of(CLAIMS, IN_BUCKETS))
def test_a_mount_round_trips(mount: Mount) -> None:
    assert parse_mounts([written(mount)]) == ((mount,), [])
    assert mount_problems([mount], ["/shared/output", "/dev/shm"]) == []


@given(st.lists(st.one_of(st.text(max_size=40), st.lists(WORDS).map("".join)), max_size=3))
def test_any_text_is_rejected_or_a_valid_mount(texts: list[str]) -> None:
    mounts, problems = parse_mounts(texts)
    assert len(mounts) + len(problems) >= len(texts)
    problems += mount_problems(mounts, ["/shared/output"])
    assert all(problem and "\n" not in problem for problem in problems)
    if not problems:
        paths = [PurePosixPath(mount.target) for mount in mounts]
        assert all(path.is_absolute() and str(path) == m.target for path, m in zip(paths, mounts, strict=True))
        others = [*paths, PurePosixPath("/shared/output")]
        assert not [1 for one in paths for other in others if one is not other and one.is_relative_to(other)]


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("src=data,dst=/data,ro", Mount(source="data", target="/data", read_only=True)),
        ("target=//data/./a/,source=data", Mount(source="data", target="/data/a")),
        ("source=gs://bucket/,target=/data", Mount(source="gs://bucket", target="/data")),
        ("source=d,target=/data,readonly=false,subpath=a/b/", Mount(source="d", target="/data", sub_path="a/b")),
    ],
)
def test_alternative_spellings_of_mounts(text: str, mount: Mount) -> None:
    assert parse_mounts([text]) == ((mount,), [])
    assert mount_problems([mount], []) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is not one of source, target, subpath and readonly"),
        ("data:/data", "'data:/data' is not one of"),
        ("type=volume,source=data,target=/data", "'type' is not one of"),
        ("source=data", "has no target"),
        ("target=/data", "has no source"),
        ("source=a,src=b,target=/data", "gives its source twice"),
        ("source=a,target=/data,readonly=yes", "readonly must be true or false"),
        ("source=a,target=/data,subpath=", "its subpath is empty"),
    ],
)
def test_invalid_mounts_are_rejected(text: str, says: str) -> None:
    mounts, (problem,) = parse_mounts([text])
    assert mounts == () and says in problem


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        ("data", "data", "must be an absolute path"),
        ("data", "/mnt/../etc", "must be an absolute path"),
        ("data", "/mnt/a:b", "must be an absolute path"),
        ("data", "/", "hide files of the hosts' image"),
        ("data", "/usr/lib/data", "hide files of the hosts' image"),
        ("data", "/app", "hide files of the hosts' image"),
        ("data", "/tmp", "hide files of the hosts' image"),
        ("data", "/xpk/code", "hide files of the hosts' image"),
        ("data", "/shared", "would hide /shared/output"),
        ("data", "/shared/output/data", "would hide /shared/output"),
        ("Data", "/data", "neither a PersistentVolumeClaim's name"),
        ("a" * 254, "/data", "neither a PersistentVolumeClaim's name"),
        ("/data", "/data", "--node-folder PATH"),
        ("s3://bucket", "/data", "only gs://BUCKET/PREFIX can be mounted"),
        ("gs://", "/data", "invalid bucket name"),
        ("gs://_", "/data", "invalid bucket name"),  # for the driver: all buckets
        ("gs://bucket/a//b", "/data", "empty part"),
        ("gs://bucket/../b", "/data", "empty part"),
        ("gs://bucket/a:b", "/data", "does not support a prefix with ':'"),
    ],
)
def test_unsupported_mounts_are_rejected(source: str, target: str, says: str) -> None:
    (problem,) = mount_problems([Mount(source=source, target=target)], ["/shared/output"])
    assert says in problem


@pytest.mark.parametrize("sub_path", ["/a", "../a", "a//b", "a/./b", "a\nb"])
def test_invalid_folders_of_claims_are_rejected(sub_path: str) -> None:
    (problem,) = mount_problems([Mount(source="data", target="/data", sub_path=sub_path)], [])
    assert "must be a relative folder" in problem
    (problem,) = mount_problems([Mount(source="gs://bucket", target="/data", sub_path="a")], [])
    assert "write gs://BUCKET/FOLDER" in problem


def test_overlapping_mount_paths_are_rejected() -> None:
    targets = ["/data", "/data", "/data/a", "/database"]
    mounts = [Mount(source=f"claim-{index}", target=target) for index, target in enumerate(targets)]
    same, inside, again = mount_problems(mounts, [])
    assert "duplicate target /data" in same
    assert inside == again == "--mount: of /data/a and /data one is inside the other"
