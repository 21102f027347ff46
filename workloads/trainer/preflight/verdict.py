"""Verdict on all hosts: their own results, and comparisons of speeds. Pure functions.

A speed is compared with that of the median host, which a few slow hosts do not change. A host is also given some time
for free, because short measurements are noisy.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainer.preflight.checks import Check, Result, from_json
from trainer.preflight.pairs import Pair

LINKS = (Check.ICI, Check.DCN)
_PRODUCTS = (Check.BF16, Check.INT8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of speeds. On emulated chips, which share the cores of a machine, only long delays count."""

    product_share: float = 0.75  # minimum speed of products, as a share of the median host's
    link_share: float = 0.5  # minimum bandwidth, as a share of the median pair's
    slack_seconds: float = 0.001  # by which a measurement must also be longer
    min_gbps: Mapping[Check, float] = field(default_factory=dict)  # minimum bandwidth of ici and dcn, in GB/s

    def is_slow(self, seconds: float, median: float, share: float) -> bool:
        """Return whether a measurement is slow, compared with that of the median host."""
        return seconds * share > median and seconds - median > self.slack_seconds


EMULATED = Limits(slack_seconds=2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that one host has measured. `exchanges`: pairs and seconds of `host_bytes` in each direction."""

    results: Sequence[Result]
    exchanges: Mapping[Check, Sequence[tuple[Pair, float]]] = field(default_factory=dict)
    wrong_data: Mapping[Check, str] = field(default_factory=dict)  # problems of the received data
    host_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "results": [result.to_json() for result in self.results],
            "exchanges": dict(self.exchanges),
            "wrong_data": dict(self.wrong_data),
            "host_bytes": self.host_bytes,
        }


def report_from_json(row: Mapping[str, Any]) -> Report:
    """Return the report that `to_json` has written."""
    exchanges = {Check(k): [((a, b), s) for (a, b), s in measured] for k, measured in row["exchanges"].items()}
    return Report(
        results=[from_json(result) for result in row["results"]],
        exchanges=exchanges,
        wrong_data={Check(check): problem for check, problem in row["wrong_data"].items()},
        host_bytes=row["host_bytes"],
    )


def judge(reports: Sequence[Report], limits: Limits, name: Callable[[int], str]) -> list[list[Result]]:
    """Return the results of each host, in process order; `name` returns the name of a process."""
    judged = [list(report.results) for report in reports]
    for check in _PRODUCTS:
        _judge_products(judged, check, limits)
    slow = {check: slow_pairs(reports, check, limits) for check in LINKS}
    blamed = blame(reports, slow)
    for process, report in enumerate(reports):
        for check in LINKS:
            if report.exchanges.get(check):
                judged[process].append(_link_result(process, report, check, blamed.get((process, check), []), name))
    return judged


def own_results(report: Report, name: Callable[[int], str]) -> list[Result]:
    """Return the results of one host without comparisons."""
    return judge([report], Limits(product_share=0.0, link_share=0.0), name)[0]


def _judge_products(judged: list[list[Result]], check: Check, limits: Limits) -> None:
    """Add a problem to the results of hosts whose products are slow."""
    seconds = [result.value for results in judged for result in results if result.check is check]
    known = [value for value in seconds if value is not None]
    if not known:
        return
    median = statistics.median_low(known)
    for results in judged:
        for index, result in enumerate(results):
            if result.check is check and result.value and limits.is_slow(result.value, median, limits.product_share):
                slow = f"{result.value:.4g} s for the products, {median:.4g} s on the median host"
                results[index] = replace(result, problem="; ".join(filter(None, [result.problem, slow])))


def slow_pairs(reports: Sequence[Report], check: Check, limits: Limits) -> dict[Pair, str]:
    """Return the pairs of hosts between which an exchange is slow, with the reason."""
    seconds: dict[Pair, float] = {}
    for report in reports:
        for pair, measured in report.exchanges.get(check, ()):
            seconds[pair] = max(measured, seconds.get(pair, 0.0))
    if not seconds:
        return {}
    median, size, floor = statistics.median_low(seconds.values()), reports[0].host_bytes, limits.min_gbps.get(check, 0)
    slow = {}
    for pair, measured in seconds.items():
        gbps = size / measured / 1e9
        if gbps < floor:
            slow[pair] = f"{gbps:.3g} GB/s, at least {floor:g} GB/s is required"
        elif limits.is_slow(measured, median, limits.link_share):
            slow[pair] = f"{gbps:.3g} GB/s, {size / median / 1e9:.3g} GB/s between the median pair"
    return slow


def blame(
    reports: Sequence[Report], slow: Mapping[Check, Mapping[Pair, str]]
) -> dict[tuple[int, Check], list[tuple[int, str]]]:
    """Return the (partner, reason) of each slow exchange that a host is blamed for, by host and check.

    Of a slow pair, it is the host that is slow with all of its partners if the other one is not: in the same check, or
    else in both. If that distinguishes neither, as with a bad cable, it is both.
    """
    fast: dict[Check, set[int]] = {}
    for report in reports:
        for check, measured in report.exchanges.items():
            pairs = [pair for pair, _ in measured if pair not in slow.get(check, {})]
            fast.setdefault(check, set()).update(end for pair in pairs for end in pair)
    fast_in_any = set[int]().union(*fast.values())
    blamed: dict[tuple[int, Check], list[tuple[int, str]]] = {}
    for check, slow_ones in slow.items():
        for pair, words in slow_ones.items():
            for own in _responsible(pair, fast.get(check, set()), fast_in_any):
                partner = pair[0] if own == pair[1] else pair[1]
                blamed.setdefault((own, check), []).append((partner, words))
    return blamed


def _responsible(pair: Pair, *fast: set[int]) -> list[int]:
    """Return the hosts of a pair that are not in the first of the sets that has only one of them; else both."""
    for hosts in fast:
        outside = [host for host in pair if host not in hosts]
        if len(outside) == 1:
            return outside
    return list(pair)


def _link_result(
    process: int, report: Report, check: Check, blamed: Sequence[tuple[int, str]], name: Callable[[int], str]
) -> Result:
    problems = [f"with {name(partner)}: {words}" for partner, words in blamed]
    problems += filter(None, [report.wrong_data.get(check, "")])
    measured = report.exchanges[check]
    gbps = report.host_bytes / max(seconds for _, seconds in measured) / 1e9
    hosts = "1 host" if len(measured) == 1 else f"{len(measured)} hosts"
    detail = f"{report.host_bytes >> 20} MiB in each direction with {hosts}"
    return Result(check=check, problem="; ".join(problems), value=round(gbps, 3), unit="GB/s", detail=detail)
