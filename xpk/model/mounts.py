"""Storage mounts of hosts: a PersistentVolumeClaim or a bucket, at a path. Parsed and checked without a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from xpk.model import names

GCSFUSE_DRIVER = "gcsfuse.csi.storage.gke.io"
FORM = "--mount source=CLAIM|gs://BUCKET[/PREFIX],target=/PATH[,subpath=FOLDER][,readonly]"

_SCHEME = "gs://"
# `docker --mount` takes the same synonyms.
_KEYS = {
    **{"source": "source", "src": "source", "target": "target", "dst": "target", "destination": "target"},
    **{"subpath": "subpath", "volume-subpath": "subpath", "readonly": "readonly", "ro": "readonly"},
}
_SWITCH = {"": True, "true": True, "1": True, "false": False, "0": False}
_CLAIM = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_CLAIM_LENGTH = 253
_FILLED = frozenset(map(PurePosixPath, ("/app", "/home", "/root", "/tmp", "/var", "/var/run")))  # noqa: S108  # in pods
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Storage that all hosts see at the path `target`.

    `source`: the name of a claim in the workload's namespace, or gs://BUCKET/PREFIX.
    `sub_path`: a folder in a claim.
    `options`, `prefetch_metadata`: for the driver that mounts a bucket.
    """

    source: str  # name of a claim in the workload's namespace, or gs://BUCKET/PREFIX
    target: str  # path in each host
    sub_path: str = ""  # folder in a claim
    read_only: bool = False  # whether hosts cannot write
    options: tuple[str, ...] = ()  # mount options for the driver of a bucket
    prefetch_metadata: bool = False  # whether the driver of a bucket lists its objects at the start

    @property
    def is_bucket(self) -> bool:
        """Return whether the source is a bucket or a prefix in one."""
        return self.source.startswith(_SCHEME)

    @property
    def bucket(self) -> str:
        """Return the bucket's name."""
        return self.source.removeprefix(_SCHEME).partition("/")[0]

    @property
    def prefix(self) -> str:
        """Return the prefix in the bucket, without slashes around it; "" for the whole bucket."""
        return self.source.removeprefix(_SCHEME).partition("/")[2].rstrip("/")

    def __str__(self) -> str:
        """Return a description for messages."""
        folder = f", folder {self.sub_path}" if self.sub_path else ""
        text = self.source if self.is_bucket else f"claim {self.source}{folder}"
        return f"{self.target} from {text}" + (", read-only" if self.read_only else "")


def parse_mounts(texts: Iterable[str]) -> tuple[tuple[Mount, ...], list[str]]:
    """Return the mounts of `--mount` values, and all problems of invalid ones, one line each."""
    mounts: list[Mount] = []
    problems: list[str] = []
    for text in texts:
        fields, wrong = _fields(text)
        problems += wrong
        if not wrong:
            mounts.append(_mount(fields))
    return tuple(mounts), problems


def mount_problems(mounts: Sequence[Mount], reserved_folders: Iterable[str]) -> list[str]:
    """Return all problems of a set of mounts, one line each. `reserved_folders`: folders that hosts need."""
    reserved = [PurePosixPath(folder) for folder in reserved_folders]
    problems: list[str] = []
    before: list[Mount] = []
    for mount in mounts:
        problems += _source_problems(mount)
        wrong = _target_problems(mount, reserved)
        problems += wrong
        if wrong:
            continue
        path = PurePosixPath(mount.target)
        for other in before:
            if mount.target == other.target:
                problems.append(f"--mount: duplicate target {mount.target}")
            elif _overlap(path, PurePosixPath(other.target)):
                problems.append(f"--mount: of {mount.target} and {other.target} one is inside the other")
        before.append(mount)
    return problems


def _fields(text: str) -> tuple[dict[str, str], list[str]]:
    """Return the fields of one value by their canonical names, and its problems."""
    fields: dict[str, str] = {}
    problems: list[str] = []
    for part in text.split(","):
        key, _, value = part.partition("=")
        name = _KEYS.get(key)
        if name is None:
            problems.append(f"--mount {text!r}: {key!r} is not one of source, target, subpath and readonly")
        elif name in fields:
            problems.append(f"--mount {text!r} gives its {name} twice")
        elif name == "readonly" and value not in _SWITCH:
            problems.append(f"--mount {text!r}: readonly must be true or false, got {value!r}")
        elif name == "subpath" and not value:
            problems.append(f"--mount {text!r}: its subpath is empty")
        else:
            fields[name] = value
    if not problems:
        problems = [f"--mount {text!r} has no {name}" for name in ("source", "target") if not fields.get(name)]
    return fields, problems


def _mount(fields: dict[str, str]) -> Mount:
    path = PurePosixPath(fields["target"])
    # POSIX allows two leading slashes to have another meaning.
    target = re.sub(r"^/+", "/", str(path))
    source = fields["source"].rstrip("/") if fields["source"].startswith(_SCHEME) else fields["source"]
    switch = _SWITCH[fields["readonly"]] if "readonly" in fields else False
    return Mount(source=source, target=target, sub_path=fields.get("subpath", "").rstrip("/"), read_only=switch)


def _source_problems(mount: Mount) -> Iterator[str]:
    label = f"--mount of {mount.source!r}"
    if mount.is_bucket:
        yield from _bucket_problems(mount, label)
    elif mount.source.startswith(("/", ".", "~")):
        yield f"{label}: use --node-folder PATH for a folder of the nodes"
    elif "://" in mount.source:
        yield f"{label}: unsupported URL: only gs://BUCKET/PREFIX can be mounted"
    elif not _CLAIM.fullmatch(mount.source) or len(mount.source) > _CLAIM_LENGTH:
        yield f"{label}: neither a PersistentVolumeClaim's name nor gs://BUCKET/PREFIX"
    parts = mount.sub_path.split("/")
    if mount.sub_path and ({"", ".", ".."} & set(parts) or not mount.sub_path.isprintable()):
        yield f"{label}: subpath {mount.sub_path!r} must be a relative folder, such as a/b"


def _bucket_problems(mount: Mount, label: str) -> Iterator[str]:
    if not _BUCKET.fullmatch(mount.bucket):
        yield f"{label}: invalid bucket name, expected 3 to 222 lower-case letters, digits, '-', '_' and '.'"
    if mount.prefix and {"", ".", ".."} & set(mount.prefix.split("/")):
        yield f"{label} has an empty part, '.' or '..' in its prefix"
    if ":" in mount.prefix or not mount.prefix.isprintable():
        yield f"{label}: the driver does not support a prefix with ':' or control characters"
    if mount.sub_path:
        yield f"{label}: subpath is for claims; write gs://BUCKET/FOLDER"


def _target_problems(mount: Mount, reserved: Sequence[PurePosixPath]) -> list[str]:
    path, label = PurePosixPath(mount.target), f"--mount at {mount.target!r}"
    if not path.is_absolute() or ".." in path.parts or ":" in mount.target or not mount.target.isprintable():
        return [f"{label} must be an absolute path, such as /data or /mnt/data"]
    if names.is_of_system(path) or path in _FILLED:
        return [f"{label} would hide files of the hosts' image: use /data, or a folder below /mnt"]
    hidden = [str(folder) for folder in reserved if _overlap(path, folder)]
    return [f"{label} would hide {hidden[0]}, which hosts need"] if hidden else []


def _overlap(one: PurePosixPath, other: PurePosixPath) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)
