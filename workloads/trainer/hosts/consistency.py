"""Consistency of the hosts: settings, code, versions and flags, compared before they join.

A host with different settings, library versions, code or compiler flags runs a different program. Its collectives hang,
or match those of the other hosts but mean something else. The data needs no comparison: process 0 announces its files
and checksums, and every block is verified against them when it is read.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import xpk_shared
from trainer.config import Config, sections
from trainer.errors import FatalError, Problem
from trainer.hosts.bootstrap import Host
from trainer.hosts.peers import Peers

_PACKAGES = ("jax", "jaxlib", "libtpu", "numpy", "optax", "orbax-checkpoint")
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
_OWN = {"run.output_dir", "checkpoint.local_path"}  # paths that may differ between hosts
_CODE = (Path(__file__).parents[1], Path(xpk_shared.__file__).parent)
_NAMED = 4  # differences, or hosts, in a line

Traits = dict[str, str]


def traits(config: Config, environ: Mapping[str, str], code: Traits | None = None) -> Traits:
    """Return everything that hosts must agree on, by name; `code` replaces the traits of this code."""
    values = {
        f"{section}.{field.name}": json.dumps(getattr(getattr(config, section), field.name))
        for section, kind in sections().items()
        for field in dataclasses.fields(kind)
        if f"{section}.{field.name}" not in _OWN
    }
    return values | (code or own_code()) | {name: " ".join(_flags(environ.get(name, ""))) for name in _FLAGS}


@functools.cache
def own_code() -> Traits:
    """Return the traits of this trainer's code."""
    return code_traits(_CODE)


def code_traits(folders: Sequence[Path]) -> Traits:
    """Return the traits that do not depend on settings: the code in these folders and the versions of its libraries."""
    versions = {f"version of {name}": _version(name) for name in _PACKAGES}
    return {"the trainer's code": _digest(_code(folders)), "version of Python": platform.python_version()} | versions


def check_agreement(peers: Peers, host: Host, own_traits: Traits) -> None:
    """Compare `own_traits` with the traits of all hosts; every host calls it.

    Raises FatalError on all hosts, naming the inconsistent ones. If all agree, one short message goes each way.
    """
    if host.processes == 1:
        return
    peers.report("traits", _digest([json.dumps(own_traits, sort_keys=True).encode()]))
    if host.process_id == 0:
        digests = peers.collect("traits")
        peers.announce("traits", own_traits if len(set(digests)) > 1 else None)
    first: Traits | None = peers.await_("traits")
    if first is None:
        return
    peers.report("differences", differences(own_traits, first))
    if host.process_id == 0:
        peers.announce("disagreement", describe_disagreement(host, digests, peers.collect("differences")))
    messages: list[str] = peers.await_("disagreement")
    raise FatalError(*(Problem(message, "Start all hosts from one image, with one command") for message in messages))


def differences(own_traits: Traits, others: Traits) -> list[list[str]]:
    """Return [name, mine, theirs] of every trait that differs."""
    names = sorted(own_traits.keys() | others.keys())
    return [
        [name, own_traits.get(name, ""), others.get(name, "")]
        for name in names
        if own_traits.get(name) != others.get(name)
    ]


def describe_disagreement(host: Host, digests: Sequence[str], diffs: Sequence[Sequence[Sequence[str]]]) -> list[str]:
    """Return a line for each group of hosts that differ from the majority, or from process 0 without a majority.

    `diffs` are each host's differences from process 0, in process order.
    """
    (_, most), (_, second) = Counter(digests).most_common(2)
    expected = Counter(digests).most_common(1)[0][0] if most > second else digests[0]
    example = digests.index(expected)
    lines = []
    for digest in dict.fromkeys(digests):
        if digest == expected:
            continue
        processes = [process for process, other in enumerate(digests) if other == digest]
        own_diffs = {name: (own, first) for name, own, first in diffs[processes[0]]}
        example_diffs = {name: (own, first) for name, own, first in diffs[example]}
        details = []
        for name in sorted(own_diffs.keys() | example_diffs.keys()):
            own = own_diffs[name][0] if name in own_diffs else example_diffs[name][1]
            other = example_diffs[name][0] if name in example_diffs else own_diffs[name][1]
            details.append(f"{name} is {own or 'missing'}, expected {other or 'missing'}")
        who = ", ".join(map(host.name, processes[:_NAMED])) + (
            f" and {len(processes) - _NAMED} more" if len(processes) > _NAMED else ""
        )
        more = f"; and {len(details) - _NAMED} more" if len(details) > _NAMED else ""
        lines.append(f"{who} differs from {host.name(example)}: {'; '.join(details[:_NAMED])}{more}")
    return lines


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _code(folders: Sequence[Path]) -> Iterator[bytes]:
    for folder in folders:
        for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.yaml")]):
            yield path.relative_to(folder).as_posix().encode()
            yield path.read_bytes()


def _flags(text: str) -> Iterator[str]:
    """Yield a variable's flags except those that name an output folder."""
    return (flag for flag in text.split() if not flag.startswith("--xla_dump"))


def _digest(parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:16]
