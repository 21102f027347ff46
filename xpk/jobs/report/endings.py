"""End of an attempt of a run, derived from the last events of its hosts."""

from __future__ import annotations

from typing import Literal

from xpk.jobs.report.record import Event, HostId

Ended = Literal["done", "suspended", "preempted", "failed", "host lost", "running"]


def ending(events: list[Event], *, is_last: bool, restarted: bool, finished: bool) -> tuple[Ended, str, HostId | None]:
    """Return the kind of an attempt's end, its reason in words, and the host that caused it."""
    last_words: dict[str, list[Event]] = {}
    for event in sorted(events, key=lambda event: event.time):
        last_words.setdefault(event.name, []).append(event)
    all_done = {event.host for event in last_words.get("done", [])} == {event.host for event in events}
    if (is_last and (finished or "done" in last_words)) or (events and all_done and not restarted):
        return "done", "finished", None
    if "fail" in last_words:
        first = last_words["fail"][0]
        return "failed", f"{first.host}: {first.details.get('reason') or 'failed'}", first.host
    lost = last_words.get("peer_lost", [])
    blamed = any(event.details.get("own") for event in last_words.get("hang", []))
    if "hang" in last_words and (blamed or not lost):
        first = min(last_words["hang"], key=lambda event: not event.details.get("own"))
        return "failed", f"{first.host}: timed out waiting for {first.details.get('waited_for')}", first.host
    if "preempt" in last_words:
        when = _moment_of_stop(last_words["preempt"])
        if not restarted:
            return "suspended", f"suspended or preempted, {when}", None
        return "preempted", f"stopped by SIGTERM, {when}", None
    if lost or not is_last:
        host = _dead_host(events, lost, spoke={event.host for event in [*lost, *last_words.get("done", [])]})
        if "hang" in last_words:
            return "host lost", f"{host or 'a host'} did not answer", host
        return "host lost", f"{host} died" if host else "a host died", host
    return "running", "", None


def _moment_of_stop(stops: list[Event]) -> str:
    """Return when the hosts stopped; a host that stops while it starts has nothing to save and records no step."""
    return "before the first step" if all(event.step is None for event in stops) else "after a checkpoint"


def _dead_host(events: list[Event], lost: list[Event], spoke: set[HostId]) -> HostId | None:
    """Return the host that others lost first, else the only one without a final event."""
    silent = {event.host for event in events} - spoke
    hosts_per_slice = 1 + max((event.host.host for event in events), default=0)
    for event in lost:
        peer = event.details.get("peer")
        if isinstance(peer, int) and (named := HostId(*divmod(peer, hosts_per_slice))) in silent:
            return named
    return next(iter(silent)) if spoke and len(silent) == 1 else None
