"""Usage of workloads that are being deleted: their objects, and perhaps their output, are about to go."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

from xpk.api.usage import RecordsUsage
from xpk.jobs.usage import ledger as ledgers
from xpk.jobs.usage.observation import observe_workloads
from xpk.jobs.usage.reading import LOOK_BACK, Source, record_output
from xpk.model.errors import XpkError
from xpk.model.usage import DELETED, Hold, State


class DeletionRecorder:
    """Recorder of deletions in a namespace. It reports its failures, which do not prevent the deletions."""

    def __init__(self, source: Source, namespace: str, warn: Callable[[str], None]) -> None:
        self._source, self._namespace, self._warn = source, namespace, warn
        self._last: dict[str, Hold] = {}  # by the name of the workload

    def begin(self, workloads: Collection[str]) -> None:
        """Record the use of chips up to now by workloads that are about to be deleted."""
        if isinstance(self._source.api, RecordsUsage):
            return
        with self._reported():
            folder, at = self._source.folder, self._source.clock()
            ledger = ledgers.read(folder, since=at - LOOK_BACK, until=at)
            observed = observe_workloads(
                self._source.api, ledger, now=at, namespace=self._namespace, workloads=workloads
            )
            ledgers.write(folder, observed.records, now=at)
            holds = [hold for hold in observed.records if isinstance(hold, Hold) and hold.uid in observed.live]
            self._last = {hold.workload: hold for hold in holds}

    def end(self, workload: str, *, with_output: bool) -> None:
        """Record the end of a workload's hosts, and the causes of its time if its output is about to be deleted."""
        last = self._last.get(workload)
        with self._reported():
            if last and last.state is not State.QUEUED:
                at = max(self._source.clock(), last.end + 1)
                stop = replace(last, state=State.STOP, reason=DELETED, begin=last.end, end=at)
                ledgers.write(self._source.folder, [stop], now=at)
            if with_output:
                record_output(self._source, [workload], self._namespace)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except XpkError as error:
            self._warn(f"the usage of deleted workloads is not recorded: {error.message}")
