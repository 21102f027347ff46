"""The end of a workload: the JobSet is deleted at once, its hosts end after saving their state."""

from __future__ import annotations

import time
from contextlib import suppress

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.api.text import counted
from xpk.api.timing import time_limit
from xpk.jobs.status.reader import not_found
from xpk.model import names
from xpk.model.errors import ConflictError, NotFoundError, TimedOutError
from xpk.model.status import STATELESS_MAKERS, WorkloadStatus

_LOOK_AGAIN_SECONDS = 5.0  # between reads despite a silent watch: a host may end before the watch begins
_LAST_LOOK_SECONDS = 5.0  # beyond the timeout, to read the number of remaining hosts


def check_maker(status: WorkloadStatus, *, where: str = "") -> None:
    """Raise ConflictError for a JobSet that another tool created and may depend on."""
    if status.maker not in STATELESS_MAKERS:
        raise ConflictError(
            f"'{status.name}' was created by {status.maker}, not xpk",
            hint=f"`xpk workload delete {status.name}{where} --force` deletes it anyway",
        )


def claimed_output(api: ObjectApi, name: str, namespace: str) -> str:
    """Return the output folder that a workload's objects name, "" if none. Raises NotFoundError."""
    try:
        annotations = api.get("JobSet", name, namespace)["metadata"].get("annotations") or {}
    except NotFoundError:
        hosts = _hosts(api, name, namespace)
        if not hosts:
            raise not_found(api, name, namespace) from None
        return _output_of(hosts[0])
    return str(annotations.get(names.OUTPUT_ANNOTATION, ""))


def end(api: ObjectApi, name: str, namespace: str, *, grace_seconds: int | None = None) -> None:
    """Delete a workload.

    Hosts of a workload that was deleted before get the new grace period. Raises NotFoundError.
    """
    try:
        api.delete("JobSet", name, namespace, grace_seconds=grace_seconds)
    except NotFoundError:
        hosts = _hosts(api, name, namespace)
        if not hosts:
            raise not_found(api, name, namespace) from None
        if grace_seconds is not None:
            for pod in hosts:
                _shorten_grace_period(api, pod, grace_seconds)


def await_end(
    api: ObjectApi,
    name: str,
    namespace: str,
    *,
    timeout: float,
    start: float | None = None,
    is_immediate: bool = False,
) -> None:
    """Wait until all hosts of a deleted workload have ended. Raises TimedOutError `timeout` seconds after `start`.

    `start`: a time of `time.monotonic` [default: now]. `is_immediate`: the grace period is 0 already, so the hint
    does not suggest a shorter one.
    """
    deadline = (time.monotonic() if start is None else start) + timeout
    hosts: Objs = []
    try:
        with time_limit(max(0.0, deadline - time.monotonic()) + _LAST_LOOK_SECONDS):
            while hosts := _hosts(api, name, namespace):
                if time.monotonic() > deadline:
                    break
                _await_changes(api, name, namespace, hosts, min(_LOOK_AGAIN_SECONDS, deadline - time.monotonic()))
            else:
                return
    except TimedOutError as error:
        if not hosts:
            raise
        raise _still_running(name, hosts, timeout, is_immediate) from error
    raise _still_running(name, hosts, timeout, is_immediate)


def _await_changes(api: ObjectApi, name: str, namespace: str, hosts: Objs, seconds: float) -> None:
    """Return when `hosts` are gone, or after `seconds`."""
    uids = {pod["metadata"]["uid"] for pod in hosts}
    for change, pod in api.watch("Pod", namespace, _selector(name), timeout=seconds):
        if change == "DELETED":
            uids.discard(pod["metadata"]["uid"])
        if not uids:
            return


def _still_running(name: str, hosts: Objs, timeout: float, is_immediate: bool) -> TimedOutError:
    advice = "run the same command with --grace-period 0 to end them at once"
    return TimedOutError(
        f"{counted(len(hosts), 'host')} of '{name}' still running after {timeout:g} s",
        hint="wait, or check their nodes" if is_immediate else advice,
    )


def _shorten_grace_period(api: ObjectApi, pod: Obj, grace_seconds: int) -> None:
    with suppress(NotFoundError):  # ended in the meantime
        api.delete("Pod", pod["metadata"]["name"], pod["metadata"]["namespace"], grace_seconds=grace_seconds)


def _hosts(api: ObjectApi, name: str, namespace: str) -> Objs:
    return api.list("Pod", namespace, _selector(name))


def _selector(name: str) -> dict[str, str]:
    return {"jobset.sigs.k8s.io/jobset-name": name}


def _output_of(pod: Obj) -> str:
    env = [variable for container in pod["spec"]["containers"] for variable in container.get("env") or []]
    return next((str(variable.get("value", "")) for variable in env if variable["name"] == "XPK_OUTPUT_DIR"), "")
