"""The program of a host: run the checks, agree on the verdict with the other hosts, print and record it."""

import contextlib
import functools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from trainer.errors import AddressError, ChipsError, ExitCode, PeerAbsent, reason
from trainer.hosts.bootstrap import Host, join, own_address, resolve
from trainer.hosts.job import FLUSH_SECONDS, end
from trainer.hosts.peers import Peers
from trainer.preflight import machine
from trainer.preflight.checks import Check, Result
from trainer.preflight.pairs import Pair, rounds_between, rounds_within
from trainer.preflight.verdict import EMULATED, Limits, Report, judge, own_results, report_from_json
from trainer.storage import open_place
from trainer.telemetry.metrics import JsonLines, say
from xpk_shared.storage import Place
from xpk_shared.supervisor import termination_message
from xpk_shared.supervisor.names import PASSED, PREFLIGHT_FAILED

_MEETING_SECONDS = 300.0
_MAX_NAMED = 1024  # hosts with details in the verdict, which every host receives
_CAUSE_SECONDS = 2.0  # that a healthy host stays, so that the end of the failed one is seen first


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Folders to check, and limits."""

    folders: Sequence[str] = ()  # folders on the disk of this host, besides the output folder
    min_gbps: Mapping[Check, float] = field(default_factory=dict)
    timeout_seconds: float = 300.0  # for all checks together, once the hosts are connected


class _Deadline:
    """Ends this host if the checks take too long: at fault is the host that is in a check of its own.

    Such a check may take half of the time, so that its host ends before those that wait for it.
    """

    def __init__(self, host: Host, seconds: float) -> None:
        self._host, self._seconds = host, seconds

    def start(self) -> None:
        """Start the time for all checks together."""
        _start_timer(self._seconds, self._end_waiting)

    def check(self, check: Check, run: Callable[[], Result]) -> Result:
        """Run a check of this host alone. An error, such as that of a broken chip, fails it."""
        seconds = self._seconds / 2
        late = Result(check=check, problem=f"did not finish within {seconds:g} s")
        timer = _start_timer(seconds, lambda: _fail(self._host, [late]))
        try:
            return run()
        except Exception as error:
            return Result(check=check, problem=f"{type(error).__name__}: {reason(error)}")
        finally:
            timer.cancel()

    def _end_waiting(self) -> None:
        name = self._host.name(self._host.process_id)
        say(f"preflight  {name}: the other hosts did not finish within {self._seconds:g} s")
        end(ExitCode.HUNG)


def _start_timer(seconds: float, act: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    return timer


def run(host: Host, settings: Settings) -> ExitCode:
    """Run all checks on this host and return its exit code. On failure it also ends the process by itself."""
    deadline = _Deadline(host, settings.timeout_seconds)
    results = _check_machine(host, settings, deadline)
    if any(result.check is Check.DNS and not result.passed for result in results):
        _fail(host, results)
    try:
        return _Joined(host, settings, deadline, results).run()
    except PeerAbsent as error:
        say(f"preflight  {host.name(host.process_id)}: {error}")
        return ExitCode.PEER_LOST
    except (AddressError, ChipsError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return ExitCode.CRASH
    except Exception as error:
        time.sleep(_CAUSE_SECONDS)  # a lost host breaks exchanges, too, and `_on_lost` ends this process then
        traceback.print_exception(error)
        return ExitCode.CRASH


def _check_machine(host: Host, settings: Settings, deadline: _Deadline) -> list[Result]:
    """Run the checks that come before the hosts connect."""
    results = []
    if host.coordinator:
        results.append(deadline.check(Check.DNS, lambda: machine.check_name(host.coordinator, say)))
    name = f"s{host.slice_id}-h{host.worker_id}"
    for folder in filter(None, [host.output_dir, *settings.folders]):
        results.append(deadline.check(Check.DISK, functools.partial(machine.check_storage, folder, name)))
    return results


class _Joined:
    """The checks that need the chips and the other hosts."""

    def __init__(self, host: Host, settings: Settings, deadline: _Deadline, results: list[Result]) -> None:
        self._host, self._settings, self._deadline, self._results = host, settings, deadline, results
        self._is_judged, self._began = False, time.monotonic()
        # The hosts of the program that follows do not belong to this group.
        group = f"preflight {host.slice_id}" if host.is_elastic else "preflight"
        self._peers = Peers(
            host.process_id,
            host.processes,
            host.attempt,
            (host.workload, host.job_id, host.in_place, group),
            secret=host.secret,
            on_lost=self._on_lost,
            on_message=lambda text, peer: None,
        )

    def run(self) -> ExitCode:
        """Run the checks and return the exit code. Raises PeerAbsent, AddressError or ChipsError."""
        self._connect()
        self._deadline.start()
        self._results.append(self._deadline.check(Check.CHIPS, _open_chips))
        if not self._results[-1].passed:
            _fail(self._host, self._results)
        clocks = machine.compare_clocks(self._peers)
        report = self._measure()
        self._peers.report("report", report.to_json())
        if self._host.process_id == 0:
            self._announce_verdict(clocks)
        verdict = self._peers.await_("verdict")
        self._is_judged = True
        if self._host.processes > 1:
            import jax

            shut_down: Callable[[], None] = jax.distributed.shutdown
            shut_down()  # of all hosts: the next program uses the same port
        problems = verdict["problems"].get(str(self._host.process_id), {})
        results = [*own_results(report, self._host.name), *self._clock(verdict["clocks"])]
        results = [replace(one, problem=one.problem or problems.get(one.check, "")) for one in results]
        return self._leave(results, failed=verdict["failed"])

    def _on_lost(self, peer: int) -> None:
        if self._is_judged:
            return
        termination_message.write(termination_message.LOST + self._host.name(peer))
        say(f"preflight  {self._host.name(self._host.process_id)}: lost {self._host.name(peer)}")
        time.sleep(_CAUSE_SECONDS if peer else 0)  # without process 0, JAX aborts this process
        end(ExitCode.PEER_LOST, 0.0)

    def _connect(self) -> None:
        """Connect the hosts, and start `jax.distributed`."""
        import jax  # noqa: F401  # takes seconds, in which other hosts may be late

        self._began = time.monotonic()
        host, peers = self._host, self._peers
        if host.processes == 1:
            return
        resolve_coordinator = functools.partial(resolve, host.coordinator, _MEETING_SECONDS, say)
        address, port = own_address(resolve_coordinator) if host.process_id == 0 else resolve_coordinator()
        address = peers.connect(address, port + 1, _MEETING_SECONDS, lambda: resolve_coordinator()[0])
        join(host, address, port, peers)

    def _measure(self) -> Report:
        """Check the chips, then the links."""
        from trainer.preflight import chips, links

        host, results = self._host, self._results
        for check in (Check.BF16, Check.INT8):
            results.append(self._deadline.check(check, functools.partial(chips.check_products, check)))
        results.append(self._deadline.check(Check.MEMORY, chips.check_memory))
        if host.processes == 1:
            return Report(results=results)
        self._peers.barrier("links")  # all hosts are idle
        exchange, size = links.Exchange(host.processes), (host.joined_slices, host.hosts_per_slice)
        measured: dict[Check, list[tuple[Pair, float]]] = {}
        wrong: dict[Check, str] = {}
        for check, exchanges in ((Check.ICI, rounds_within(*size)), (Check.DCN, rounds_between(*size))):
            measured[check], wrong[check] = links.measure(exchange, host.process_id, exchanges, host.name)
        return Report(results=results, exchanges=measured, wrong_data=wrong, host_bytes=exchange.host_bytes)

    def _announce_verdict(self, clocks: Sequence[Result]) -> None:
        """Judge, record and announce; on process 0."""
        import jax

        is_emulated = jax.local_devices()[0].platform == "cpu"
        limits = replace(EMULATED if is_emulated else Limits(), min_gbps=self._settings.min_gbps)
        reports = [report_from_json(row) for row in self._peers.collect("report")]
        judged = judge(reports, limits, self._host.name)
        if self._host.processes > 1:
            judged = [[*results, clock] for results, clock in zip(judged, clocks, strict=True)]
        if self._host.output_dir:
            record(self._host, open_place(self._host.output_dir), judged)
        problems = [{one.check: one.problem for one in results if not one.passed} for results in judged]
        failed = [process for process, of_host in enumerate(problems) if of_host]
        verdict = {"failed": failed, "problems": {str(n): problems[n] for n in failed[:_MAX_NAMED]}}
        self._peers.announce("verdict", verdict | {"clocks": [clock.value for clock in clocks][:_MAX_NAMED]})

    def _clock(self, offsets: Sequence[float]) -> list[Result]:
        """Return the result of this host's clock; offsets of very many hosts are not sent."""
        if self._host.processes == 1:
            return []
        offset = offsets[self._host.process_id] if self._host.process_id < len(offsets) else None
        return [Result(check=Check.CLOCK, value=offset, unit="s", detail="from slice 0 host 0")]

    def _leave(self, results: Sequence[Result], failed: Sequence[int]) -> ExitCode:
        """Print the results and end: with UNFIT on hosts that failed a check, with PEER_LOST on the others."""
        host = self._host
        if host.process_id in failed:
            _fail(host, results)
        _print(results)
        if not failed:
            _note_passed()
            self._peers.barrier("end")  # no host starts its program earlier
            self._peers.leave()
            if host.process_id == 0:
                seconds = time.monotonic() - self._began
                say(f"preflight  all {host.processes} hosts passed, {seconds:.1f} s after JAX was imported")
            return ExitCode.DONE
        named = ", ".join(map(host.name, failed[:3])) + (f" and {len(failed) - 3} more" if len(failed) > 3 else "")
        say(f"preflight  {host.name(host.process_id)}: failed on {named}; exiting")
        termination_message.write(termination_message.LOST + host.name(failed[0]))
        time.sleep(_CAUSE_SECONDS)
        return ExitCode.PEER_LOST


def _open_chips() -> Result:
    """Return the chips of this host; an error that opening them raises fails the check."""
    import jax

    began = time.monotonic()
    chips = jax.local_devices()
    seconds, kind = round(time.monotonic() - began, 3), chips[0].device_kind
    return Result(check=Check.CHIPS, value=seconds, unit="s", detail=f"{len(chips)} of {kind}")


def record(host: Host, folder: Place, judged: Sequence[Sequence[Result]]) -> None:
    """Append the results of all hosts to a file of the output folder, and wait until they are there; on process 0.

    Afterwards the hosts learn the verdict: the first that has failed ends, and then all others are stopped.
    """
    lines = JsonLines(folder / (f"preflight-s{host.slice_id}.jsonl" if host.is_elastic else "preflight.jsonl"))
    now = round(time.time(), 3)
    for process, results in enumerate(judged):
        slice_id, host_id = divmod(process, host.hosts_per_slice)
        place = {"slice": host.slice_id if host.is_elastic else slice_id, "host": host_id}
        for result in results:
            row = {"time": now, "job": host.job_id, "attempt": host.attempt, **place, "passed": result.passed}
            lines.write(row | result.to_json())
    try:
        lines.flush(FLUSH_SECONDS)
    except OSError as error:
        say(f"preflight  the results cannot be recorded: {reason(error)}")


def _note_passed() -> None:
    """Let the supervisor restart the program in place without checks. That of process 0 decides for all hosts."""
    if file := os.environ.get(PASSED, ""):
        with contextlib.suppress(OSError):
            Path(file).write_bytes(b"1")


def _print(results: Sequence[Result]) -> None:
    for result in results:
        say(str(result))


def _fail(host: Host, results: Sequence[Result]) -> NoReturn:
    """End this host because it failed a check."""
    _print(results)
    problems = "; ".join(f"{result.check}: {result.problem}" for result in results if not result.passed)
    say(f"preflight  {host.name(host.process_id)} failed; exiting")
    termination_message.write(PREFLIGHT_FAILED + problems)
    end(ExitCode.UNFIT)
