"""`LocalApi`: the `ObjectApi` of a local cluster."""

from __future__ import annotations

import base64
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from xpk.api.base import Change, Connection, Keep, LogLine, Obj, Objs, Selector, is_selected
from xpk.api.kinds import KINDS
from xpk.local import daemon_control, logs, peer_secrets, process, queue, usage
from xpk.local import objects as o
from xpk.local.environment import MARK, own_addresses
from xpk.local.jobset import delete_job, delete_jobset, delete_pod
from xpk.local.priority_limit import check_priority
from xpk.local.store import Store, Transaction
from xpk.local.validate import check_unchanged, validated
from xpk.model import names
from xpk.model.errors import ConflictError, MissingToolError, Modified, NameTaken, NotFoundError, UsageError, XpkError
from xpk.model.usage import Record

_POLL_SECONDS = 0.02
_RUN = frozenset({"JobSet", "Job", "Pod", "Workload"})  # kinds whose objects need a daemon
_SERVER_FIELDS = ("uid", "creationTimestamp", "generation", "resourceVersion")


class LocalApi:
    """The objects of the cluster in `folder`. Opens the store for each call, so threads may share it."""

    def __init__(self, folder: Path, *, workloads: str | None = None) -> None:
        self._folder = folder.absolute()
        self._workloads = workloads or ""

    @contextmanager
    def _change(self, kind: str, *, dry_run: bool = False) -> Iterator[Transaction]:
        """Yield a transaction for a change of an object of a kind.

        The daemon runs before and after it. Where nothing can run, it is not started: this process updates what depends
        on nodes and queues alone.
        """
        with Store(self._folder) as store:
            if not dry_run:
                with _with_outcome("nothing was changed"):
                    self._wake(store, kind)
            with store.transaction(write=not dry_run) as tx:
                yield tx
                # Without queues the cluster is incomplete, and a pass for each of many nodes would take seconds.
                if not dry_run and not store.has_any(_RUN) and store.has_any({"ClusterQueue"}):
                    queue.reconcile(tx)
                    usage.record(tx)
            if not dry_run:
                with _with_outcome("the change was made and takes effect once it starts"):
                    self._wake(store, kind)  # it may have exited meanwhile

    def _wake(self, store: Store, kind: str = "") -> None:
        """Make sure that the daemon runs if an object of `kind`, or one that exists, needs it."""
        if kind in _RUN or store.has_any(_RUN):
            daemon_control.ensure(self._folder, self._workloads)
        else:
            process.ring(self._folder)

    def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
        """Create an object that must not exist yet; return it as stored."""
        new = validated(obj)
        with self._change(new["kind"], dry_run=dry_run) as tx:
            if _find(tx, new) is not None:
                label = f"{new['kind']} '{new['metadata']['name']}'"
                raise NameTaken(f"{label} already exists", resource=label)
            _admit(tx, new)
            if not dry_run:
                _put_new(tx, new)
        return new

    def apply(self, obj: Obj, *, dry_run: bool = False, force: bool = False) -> Obj:
        """Set the given fields, leave fields that others own; return the object as stored."""
        new = validated(obj)
        with self._change(new["kind"], dry_run=dry_run) as tx:
            live = _find(tx, new)
            if live is None:
                _admit(tx, new)
                if not dry_run:
                    _put_new(tx, new)
                    tx.set_applied(new, validated(obj))
                return new
            _check_revision(live, new)
            merged: Any = o.merge_applied(live, tx.applied(live), new)
            merged["metadata"] |= {k: v for k, v in live["metadata"].items() if k in _SERVER_FIELDS}
            check_unchanged(live, merged)
            check_priority(tx, merged, live)
            if merged != live and not dry_run:
                tx.put(merged)
                tx.set_applied(merged, new)
        return dict(merged)

    def get(self, kind: str, name: str, namespace: str = "default") -> Obj:
        """Return one object. The only Secrets are those of JobSets' hosts."""
        if kind == "Secret":
            return self._peer_secret(name, namespace)
        with Store(self._folder) as store:
            matches = store.read(kind, _namespace(kind, namespace) or "", name)
        if not matches:
            raise _not_found(kind, name)
        return matches[0]

    def _peer_secret(self, name: str, namespace: str) -> Obj:
        uid = self.get("JobSet", name.removeprefix(names.peer_secret("")), namespace)["metadata"]["uid"]
        try:
            value = peer_secrets.path(self._folder, uid).read_bytes()
        except FileNotFoundError:
            raise NotFoundError(
                f"Secret '{name}' not found", hint="try again after the first host has started"
            ) from None
        data = {names.PEER_SECRET_KEY: base64.b64encode(value).decode()}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}, "data": data}

    def list(
        self,
        kind: str,
        namespace: str | None = "default",
        selector: Selector | None = None,
        *,
        fields: Selector | None = None,
        keep: Keep | None = None,
    ) -> Objs:
        """Return the objects of a kind by name; `namespace=None` means all namespaces."""
        stored_namespace = _namespace(kind, namespace)
        with Store(self._folder) as store:
            if kind in _RUN:
                self._wake(store)
            listed = [obj for obj in store.read(kind, stored_namespace) if is_selected(obj, selector, fields)]
        return [keep(obj) for obj in listed] if keep else listed

    def patch(self, kind: str, name: str, patch: Obj, namespace: str = "default") -> Obj:
        """Merge a JSON merge patch (RFC 7386) into an object; return the result."""
        with self._change(kind) as tx:
            live = _existing(tx, kind, name, namespace)
            _check_revision(live, patch)
            merged: Any = o.merge_patch(live, patch)
            merged["metadata"] |= {k: v for k, v in live["metadata"].items() if k in _SERVER_FIELDS}
            if (merged["metadata"]["name"], merged["kind"]) != (name, kind):
                raise UsageError("a patch can change neither the name nor the kind of an object")
            if kind not in ("Workload", "Pod", "Job", "Event"):
                validated(merged)
            check_unchanged(live, merged)
            check_priority(tx, merged, live)
            tx.put(merged)
            result: Obj = merged
        return result

    def delete(self, kind: str, name: str, namespace: str = "default", *, grace_seconds: int | None = None) -> None:
        """Delete an object and everything that it owns. Returns before the deletion is complete."""
        with self._change(kind) as tx:
            obj = _existing(tx, kind, name, namespace)
            if kind == "JobSet":
                delete_jobset(tx, obj, grace_seconds)
            elif kind == "Job":
                delete_job(tx, obj, grace_seconds, why="the Job was deleted")
            elif kind == "Pod":
                delete_pod(tx, obj, grace_seconds)
            else:
                tx.remove(obj)

    def evict(self, name: str, namespace: str = "default") -> None:
        """Evict a pod: its host gets SIGTERM. There are no PodDisruptionBudgets here."""
        with self._change("Pod") as tx:
            pod = _existing(tx, "Pod", name, namespace)
            o.set_condition(pod, "DisruptionTarget", True, "EvictionByEvictionAPI", "Eviction API: evicting")
            delete_pod(tx, pod)

    def watch(
        self,
        kind: str,
        namespace: str | None = "default",
        selector: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
    ) -> Iterator[tuple[Change, Obj]]:
        """Yield existing objects (as ADDED), then every change, until `timeout` seconds have passed."""
        stored_namespace = _namespace(kind, namespace)
        end = None if timeout is None else time.monotonic() + timeout
        with Store(self._folder) as store:
            self._wake(store)
            for _, change, obj in _follow(store, kind, end):
                if stored_namespace in (None, obj["metadata"].get("namespace", "")) and is_selected(obj, selector):
                    yield change, obj

    def logs(
        self, pod: Obj, *, follow: bool = False, since: datetime | None = None, tail: int | None = None
    ) -> Iterator[LogLine]:
        """Yield a pod's log lines; with `follow`, until the pod has ended."""
        folder = self._folder / process.PODS / pod["metadata"]["uid"]
        while follow and not folder.exists():
            if pod["metadata"]["uid"] not in {obj["metadata"]["uid"] for obj in self.list("Pod", None)}:
                return
            time.sleep(_POLL_SECONDS)
        yield from logs.read(folder, follow=follow, since=since, tail=tail)

    def exec(self, pod: Obj, argv: Sequence[str], *, interactive: bool = False) -> int:
        """Run a program with the environment and the working folder of a host."""
        host = self._folder / process.PODS / pod["metadata"]["uid"]
        # Not from /proc: a host that has just been forked still has its supervisor's environment there.
        spec = process.read_spec(host) if process.observe(host).state == "running" else {}
        if not spec:
            name = pod["metadata"]["name"]
            raise ConflictError(f"the host of pod '{name}' is not running", hint="`xpk workload status` shows why")
        environment = dict(spec["environment"])
        environment.pop(MARK, None)  # it must not count as part of the host
        try:
            return subprocess.run(list(argv), env=environment, cwd=spec["folder"], check=False).returncode
        except OSError as error:
            raise NotFoundError(
                f"cannot run '{argv[0]}': {error.strerror}", hint="pass the program's absolute path"
            ) from error

    def connect(self, pod: Obj, port: int) -> Connection:
        """Return a connection to a port of a host, at one of its loopback addresses."""
        for address in own_addresses(pod):
            with suppress(OSError):
                return socket.create_connection((address, port), timeout=5.0)
        raise ConflictError(
            f"nothing is listening on port {port} of pod '{pod['metadata']['name']}'",
            hint="`xpk workload logs` shows what the host does",
        )

    def former_pods(self, namespace: str, selector: Mapping[str, str]) -> Objs:
        """Return the last state of deleted pods, the oldest first."""
        with Store(self._folder) as store:
            pods = [obj | {"kind": "Pod"} for obj in store.read("FormerPod", namespace) if is_selected(obj, selector)]
        return sorted(pods, key=lambda pod: str(pod["metadata"]["uid"]))

    @property
    def usage_folder(self) -> str:
        """See `RecordsUsage.usage_folder`."""
        return str(self._folder / usage.FOLDER)

    def open_usage(self) -> Sequence[Record]:
        """See `RecordsUsage.open_usage`."""
        with Store(self._folder) as store:
            self._wake(store)
            with store.transaction(write=False) as tx:
                return usage.open_records(tx)


@contextmanager
def _with_outcome(outcome: str) -> Iterator[None]:
    """Add to an error whether the change was made."""
    try:
        yield
    except XpkError as error:
        raise XpkError(f"{error.message}; {outcome}", hint=error.hint) from error


def _follow(store: Store, kind: str, end: float | None) -> Iterator[tuple[int, Change, Obj]]:
    """Yield existing objects, then changes; start over if the change log does not reach back far enough."""
    known: dict[str, Obj] = {}
    revision: int | None = None
    while True:
        changes: list[tuple[int, Change, Obj]] | None = None
        if revision is not None:
            changes = store.changes(kind, revision)
        if changes is None:
            with store.transaction(write=False):
                present = {obj["metadata"]["uid"]: obj for obj in store.read(kind)}
                revision = store.revision()
            removed = [obj for uid, obj in known.items() if uid not in present]
            changes = [
                *((revision, "DELETED", obj) for obj in removed),
                *((revision, "MODIFIED" if uid in known else "ADDED", obj) for uid, obj in present.items()),
            ]
        for revision, change, obj in changes:
            known[obj["metadata"]["uid"]] = obj
            if change == "DELETED":
                del known[obj["metadata"]["uid"]]
            yield revision, change, obj
        version = store.version()
        while not changes and store.version() == version:
            if end is not None and time.monotonic() >= end:
                return
            time.sleep(_POLL_SECONDS)
        if end is not None and time.monotonic() >= end:
            return


def _namespace(kind: str, namespace: str | None) -> str | None:
    """Return the namespace in which an object is stored. Raises MissingToolError."""
    if kind not in KINDS:
        raise MissingToolError(f"the local control plane has no kind '{kind}'")
    return namespace if KINDS[kind].namespaced else ""


def _existing(tx: Transaction, kind: str, name: str, namespace: str) -> Obj:
    obj = tx.get(kind, _namespace(kind, namespace) or "", name)
    if obj is None:
        raise _not_found(kind, name)
    return obj


def _not_found(kind: str, name: str) -> NotFoundError:
    return NotFoundError(f"{kind} '{name}' not found")


def _find(tx: Transaction, obj: Obj) -> Obj | None:
    return tx.get(obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"])


def _check_revision(live: Obj, update: Obj) -> None:
    revision = update.get("metadata", {}).get("resourceVersion")
    if revision not in (None, live["metadata"]["resourceVersion"]):
        label = f"{live['kind']} '{live['metadata']['name']}'"
        raise Modified(f"{label} was modified concurrently", resource=label)


def _admit(tx: Transaction, obj: Obj) -> None:
    """Suspend a queued JobSet until it is admitted, as Kueue's webhook does."""
    check_priority(tx, obj, None)
    if obj["kind"] == "JobSet" and o.label(obj, o.QUEUE_LABEL):
        obj["spec"]["suspend"] = True


def _put_new(tx: Transaction, obj: Obj) -> None:
    tx.put(obj)
    if obj["kind"] == "JobSet":
        tx.event(obj, "Created", f"JobSet {o.full_name(obj)}")
