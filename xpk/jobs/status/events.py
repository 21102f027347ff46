"""Events of a workload, including those of its deleted pods and Jobs. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable

from xpk.api.base import Obj
from xpk.jobs.status.diagnosis import is_passing
from xpk.jobs.status.fields import Snapshot, event_times, jobs_in, label, when
from xpk.model.names import HELD_QUEUE
from xpk.model.status import Occurrence

# Events of every host's start and every Job's end.
ROUTINE_OF_HOSTS = (
    *("Scheduled", "Pulling", "Pulled", "Created", "Started", "Killing", "SuccessfulCreate", "SuccessfulDelete"),
)
_ROUTINE = (
    *ROUTINE_OF_HOSTS,
    *("CreatedWorkload", "Suspended", "Resumed", "SuspendedJobs", "ResumeJobs", "DefaultFailurePolicy"),
    *("QuotaReserved", "Admitted"),
)


def events_of(jobset: Obj, snapshot: Snapshot) -> list[Obj]:
    """Return a workload's events, oldest first.

    Deleted pods and Jobs of earlier attempts are recognized by their names; events older than the JobSet belong to an
    earlier workload of the same name.
    """
    meta = jobset["metadata"]
    workload = snapshot.workload_of.get(meta["uid"])
    jobs = "|".join(re.escape(str(item.get("name", ""))) for item in jobs_in(jobset["spec"]))
    job = re.compile(rf"{re.escape(meta['name'])}-(?:{jobs})-\d+")
    pod = re.compile(rf"{job.pattern}-\d+-\w{{5}}")
    uids = {meta["uid"], *([workload["metadata"].get("uid")] if workload else [])}

    def is_ours(event: Obj) -> bool:
        about = event.get("involvedObject") or {}
        names = {"Job": job, "Pod": pod}.get(str(about.get("kind")))
        if about.get("uid") in uids:
            return True
        begun = when(event_times(event)[1]) >= when(meta["creationTimestamp"])
        return names is not None and begun and bool(names.fullmatch(str(about.get("name"))))

    events = [event for event in snapshot.events if is_ours(event)]
    return sorted(events, key=lambda event: (when(event_times(event)[1]), str(event["metadata"].get("uid"))))


def occurrences(events: Iterable[Obj]) -> tuple[Occurrence, ...]:
    """Return events for people: equal events of several objects are merged."""
    groups: dict[tuple[str, str, str, str], list[Obj]] = {}
    for event in events:
        about = event.get("involvedObject") or {}
        name = str(about.get("name", ""))
        # Messages of hosts and Jobs differ only by their names.
        message = str(event.get("message", "")).replace(f"{about.get('namespace')}/{name}", "it").replace(name, "it")
        key = (str(event.get("type", "Normal")), str(event.get("reason", "")), str(about.get("kind")), message)
        groups.setdefault(key, []).append(event)
    rows = [_occurrence(*key, same) for key, same in groups.items()]
    return tuple(sorted(rows, key=lambda row: when(row.time)))


def notable_events(events: Iterable[Obj]) -> list[Obj]:
    """Return the events that a healthy workload does not have."""
    notable = [event for event in events if event.get("reason") not in _ROUTINE and not is_passing(event)]
    return [event for event in notable if not _is_expected(str(event.get("message", "")))]


def _is_expected(message: str) -> bool:
    """Return True for the failure of an image pull that kubelet repeats without a reason, and for a held copy."""
    return message.startswith("Error: ") or HELD_QUEUE in message


def _occurrence(kind: str, reason: str, about: str, message: str, same: list[Obj]) -> Occurrence:
    times = [event_times(event) for event in same]
    names = list(dict.fromkeys(str((event.get("involvedObject") or {}).get("name", "")) for event in same))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    text = message if len(names) > 1 else str(same[0].get("message", ""))
    return Occurrence(
        time=max((last for _, last, _ in times), key=when),
        first=min((first for first, _, _ in times), key=when),
        count=sum(count for _, _, count in times),
        type=kind,
        reason=reason,
        object=f"{about}/{names[0]}{more}",
        message=text,
    )


def is_local(event: Obj) -> bool:
    """Return True for an event of the local control plane, which has one for the end of every host."""
    return bool(label(event, "xpk.local/about"))
