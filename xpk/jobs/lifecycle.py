"""Waiting for workloads, and suspending and resuming them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from xpk.api.base import Change, Obj, ObjectApi
from xpk.api.text import is_hopeless_pull, is_missing_image
from xpk.api.timing import Backoff, time_limit
from xpk.jobs.outage import SIGNS, Outage
from xpk.jobs.status.fields import Snapshot, label, owned_by
from xpk.jobs.status.reader import read, take
from xpk.model import names
from xpk.model.errors import (
    AuthorizationError,
    ConflictError,
    NotFoundError,
    TimedOutError,
    UnavailableError,
    WorkloadFailedError,
    XpkError,
)
from xpk.model.status import Phase, WorkloadStatus

_PAUSE = 0.5  # seconds between requests to an unreachable server
_PICKUP_SECONDS = 10.0  # maximum time for Kueue to pick up a new workload
_LOOK_AGAIN = 10.0  # seconds after which the status is read despite a silent watch; a read takes several requests
_LAST_EVENT_SECONDS = 2.0  # until the event of a deletion that was noticed by a read
_READ_SECONDS = 5.0  # for the only read with a time limit of 0: the status may be final already
_PULL_GRACE_SECONDS = 30.0  # grace period of a refused image pull: kubelet retries after 10 s and 20 s


def follow_status(
    api: ObjectApi, name: str, namespace: str, *, timeout: float | None = None
) -> Iterator[WorkloadStatus]:
    """Yield the status now and after each change, until it is final or `timeout` seconds have passed.

    Raises NotFoundError if the workload does not exist or is deleted, and TimedOutError if the server has not returned
    its status in that time.
    """
    last: WorkloadStatus | None = None
    for status in _looks(api, name, namespace, timeout):
        if status != last:
            yield status
        last = status


def _looks(api: ObjectApi, name: str, namespace: str, timeout: float | None) -> Iterator[WorkloadStatus]:
    """Yield the status of each read, changed or not; otherwise like `follow_status`."""
    deadline = None if timeout is None else time.monotonic() + timeout
    last: WorkloadStatus | None = None
    latest: Obj | None = None
    outage, watching, is_refused = Outage(), Outage(), False
    while True:
        try:
            snapshot = take(api, namespace, name=name)
            (jobset,) = snapshot.jobsets
            status = read(jobset, snapshot)
            outage.end()
        except SIGNS as error:
            outage.pause_or_raise(error)
            if deadline is not None and time.monotonic() >= deadline:
                return
            continue
        except TimedOutError:
            if last is None:
                raise
            return
        except NotFoundError:
            # Deleted after its time to live: the last object that was read has its final status.
            if latest is None or not (status := read(latest, Snapshot(jobsets=[latest]))).phase.is_final:
                raise
        yield status
        last = status
        seconds = _LOOK_AGAIN if deadline is None else min(_LOOK_AGAIN, deadline - time.monotonic())
        if status.phase.is_final or seconds <= 0:
            return
        try:
            latest = _until_change(api, jobset, seconds) or latest
            watching.end()
            is_refused = False
        except UnavailableError:
            time.sleep(_PAUSE)  # a lasting outage fails the next read
        except SIGNS as error:
            if is_refused:  # refused twice although a read succeeded: list permission does not imply watch permission
                watching.pause_or_raise(error)
            is_refused = True
            time.sleep(_PAUSE)


def wait(
    api: ObjectApi,
    name: str,
    namespace: str,
    *,
    timeout: float | None,
    stated_timeout: float | None = None,
    tell: Callable[[WorkloadStatus], None] = lambda status: None,
    where: str = "",
    must_start: bool = False,
    pull_grace_seconds: float = _PULL_GRACE_SECONDS,
) -> WorkloadStatus:
    """Wait until a workload ends and return its status; `tell` is called with every change.

    `where`: flags of commands in hints. Raises TimedOutError after `timeout` seconds, in words `stated_timeout` if the
    wait began earlier, and, with `must_start`, WorkloadFailedError for an image that cannot be pulled. Callers check
    for failure by `check_succeeded`.
    """
    status, last_told, refused_since = None, None, dict[str, float]()
    with time_limit(_READ_SECONDS if timeout == 0 else timeout):
        for status in _looks(api, name, namespace, timeout):
            if status != last_told:
                tell(status)
            last_told = status
            if must_start and status.phase is not Phase.RUNNING:  # elastic slices run without those that cannot start
                check_images(status, refused_since, where=where, grace_seconds=pull_grace_seconds)
    if status is None or not status.phase.is_final:
        phase, limit = status.phase if status else "unknown", timeout if stated_timeout is None else stated_timeout
        raise TimedOutError(
            ("" if limit is None else f"timed out after {limit:g} s: ") + f"workload '{name}' is {phase}",
            hint=f"`xpk workload status {name}{where}` shows the reason; the workload continues",
        )
    return status


def check_images(
    status: WorkloadStatus,
    refused_since: dict[str, float],
    *,
    where: str = "",
    clock: Callable[[], float] = time.monotonic,
    grace_seconds: float = _PULL_GRACE_SECONDS,
) -> None:
    """Raise WorkloadFailedError for a workload with an image that cannot be pulled.

    An image that does not exist fails at once, others after a grace period; `refused_since` maps an image to the time
    of its first refusal.
    """
    waiting = {trouble.image for trouble in status.troubles}
    for image in refused_since.keys() - waiting:
        del refused_since[image]
    for trouble in status.troubles:
        if not trouble.image or not is_hopeless_pull(trouble.reason, trouble.message):
            continue
        since = refused_since.setdefault(trouble.image, clock())
        if is_missing_image(trouble.reason, trouble.message) or clock() - since >= grace_seconds:
            raise WorkloadFailedError(
                f"workload '{status.name}' cannot start: image {trouble.image} cannot be pulled: {trouble.message}",
                hint=f"`xpk workload delete {status.name}{where}`, then create it with another --docker-image, or with "
                "--docker-image-pull-secret",
            )


def check_succeeded(status: WorkloadStatus, *, where: str = "", then: str = "logs") -> None:
    """Raise WorkloadFailedError for a failed workload; `then` is the verb of the command in its hint."""
    if status.phase == Phase.FAILED:
        raise WorkloadFailedError(
            f"workload '{status.name}' failed: {status.reason}", hint=f"`xpk workload {then} {status.name}{where}`"
        )


def set_active(
    api: ObjectApi,
    name: str,
    namespace: str,
    *,
    active: bool,
    where: str = "",
    pickup_seconds: float = _PICKUP_SECONDS,
) -> None:
    """Suspend a workload, or queue it again; waits up to `pickup_seconds` until Kueue has picked up a new one.

    `where`: flags of commands in hints. Raises NotFoundError, or ConflictError if it has ended or has no queue.
    """
    snapshot = take(api, namespace, name=name)
    (jobset,) = snapshot.jobsets
    status = read(jobset, snapshot)
    if status.phase.is_final:
        hint = f"`xpk workload status {name}{where}`"
        raise ConflictError(f"workload '{name}' has ended: {status.phase}", hint=hint)
    deadline = time.monotonic() + pickup_seconds
    # By its UID: an earlier workload of this name, or another kind of object, may have a Kueue Workload as well.
    while (queued := owned_by(api.list("Workload", namespace), jobset["metadata"]["uid"])) is None:
        if status.queue is None:
            raise ConflictError(
                f"workload '{name}' has no queue, so xpk cannot suspend or resume it",
                hint=f"`kubectl patch jobset {name} -n {namespace} --type merge "
                f"""-p '{{"spec":{{"suspend":{str(not active).lower()}}}}}'`""",
            )
        if time.monotonic() >= deadline:
            raise NotFoundError(
                f"workload '{name}' is not queued: Kueue has not picked it up within {pickup_seconds:g} s",
                hint="try again; `kubectl get pods --namespace kueue-system` shows Kueue's controller",
            )
        time.sleep(_PAUSE)
    api.patch("Workload", queued["metadata"]["name"], {"spec": {"active": active}}, namespace)


class EndWatch:
    """A thread that watches a workload's JobSet, for its end: a time to live may delete it before it is read."""

    def __init__(self, api: ObjectApi, name: str, namespace: str) -> None:
        self._api, self._name, self._namespace = api, name, namespace
        self._latest: Obj | None = None
        self._is_gone, self._is_over = threading.Event(), threading.Event()

    def __enter__(self) -> EndWatch:
        """Start to watch."""
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Watch no more: the thread ends with its present request."""
        self._is_over.set()

    def last_status(self) -> WorkloadStatus | None:
        """Return the final status of a workload that does not exist any more; None if it was deleted before its end."""
        self._is_gone.wait(_LAST_EVENT_SECONDS)
        if self._latest is None:
            return None
        status = read(self._latest, Snapshot(jobsets=[self._latest]))
        return status if status.phase.is_final else None

    def _watch(self) -> None:
        pauses = Backoff()
        while not self._is_over.is_set():
            try:
                self._latest = self._latest or self._api.get("JobSet", self._name, self._namespace)
                for change, obj in _events(self._api, self._latest, None):
                    self._latest = obj
                    pauses.reset()
                    if change == "DELETED":
                        self._is_gone.set()
                        return
            except AuthorizationError:  # without it, the end of a workload that is deleted at once is unknown
                return
            except XpkError:  # the command itself reports an outage
                pass
            self._is_over.wait(pauses.next())


def _until_change(api: ObjectApi, jobset: Obj, seconds: float) -> Obj | None:
    """Return a JobSet once it differs from the one that was read, or after `seconds`; None if it does not exist."""
    latest = None
    for change, obj in _events(api, jobset, seconds):
        # The first ADDED is the existing object, which may have changed since it was read.
        if latest is not None or change != "ADDED" or _version(obj) != _version(jobset):
            return obj
        latest = obj
    return latest


def _events(api: ObjectApi, jobset: Obj, seconds: float | None) -> Iterator[tuple[Change, Obj]]:
    """Yield a JobSet if it exists, and its changes."""
    metadata = jobset["metadata"]
    # Watches select by labels. A JobSet without a label of its own is watched together with all others.
    labels = (names.WORKLOAD_LABEL, names.GCLUSTER_LABEL)
    selector = next(({key: metadata["name"]} for key in labels if label(jobset, key) == metadata["name"]), None)
    for change, obj in api.watch("JobSet", metadata.get("namespace", "default"), selector, timeout=seconds):
        if obj["metadata"]["name"] == metadata["name"]:  # else another object with a copy of the label
            yield change, obj


def _version(obj: Obj) -> str:
    return str(obj["metadata"].get("resourceVersion", ""))
