"""Verdict on the speeds of hosts, and who is blamed for a slow link. No processes."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from trainer.preflight.checks import Check, Result
from trainer.preflight.pairs import Pair, rounds, rounds_between, rounds_within
from trainer.preflight.verdict import EMULATED, Limits, Report, judge, own_results, report_from_json

MIB = 256
REAL = Limits()


def name(process: int) -> str:
    return f"host {process}"


def a_job(
    num_slices: int,
    hosts_per_slice: int,
    seconds: Callable[[Check, Pair], float] = lambda check, pair: 0.004 if check is Check.ICI else 0.02,
    product: Callable[[int], float] = lambda process: 0.0012,
) -> list[Report]:
    """Return the reports of all hosts, in process order."""
    exchanges = {
        Check.ICI: rounds_within(num_slices, hosts_per_slice),
        Check.DCN: rounds_between(num_slices, hosts_per_slice),
    }
    pairs = {
        (check, pair): seconds(check, pair)
        for check, of_check in exchanges.items()
        for each in of_check
        for pair in each
    }
    return [
        Report(
            results=[Result(check=check, value=product(process), unit="s") for check in (Check.BF16, Check.INT8)],
            exchanges={
                check: [(pair, taken) for (of, pair), taken in pairs.items() if of is check and process in pair]
                for check in exchanges
            },
            host_bytes=MIB << 20,
        )
        for process in range(num_slices * hosts_per_slice)
    ]


def failures(judged: Sequence[Sequence[Result]]) -> set[tuple[int, str]]:
    return {(process, one.check.value) for process, results in enumerate(judged) for one in results if one.problem}


def slow_between(*slow: Pair) -> Callable[[Check, Pair], float]:
    return lambda check, pair: 0.1 if pair in slow else 0.01


@pytest.mark.parametrize("seed", range(20))
def test_undisturbed_hosts_pass_despite_noise(seed: int) -> None:
    noise = random.Random(seed)
    reports = a_job(
        4,
        4,
        seconds=lambda check, pair: 0.008 * noise.lognormvariate(0, 0.12),
        product=lambda process: 0.0012 * noise.lognormvariate(0, 0.05),
    )
    assert failures(judge(reports, REAL, name)) == set()
    # On a busy machine with emulated chips, everything may take ten times as long.
    busy = a_job(
        2,
        2,
        seconds=lambda check, pair: noise.uniform(0.01, 1.0),
        product=lambda process: noise.uniform(0.001, 0.5),
    )
    assert failures(judge(busy, EMULATED, name)) == set()


def test_a_slow_chip_is_noticed_on_its_host() -> None:
    reports = a_job(2, 2, product=lambda process: 0.008 if process == 2 else 0.0012)
    judged = judge(reports, REAL, name)
    assert failures(judged) == {(2, "bf16"), (2, "int8")}
    assert judged[2][0].problem == "0.008 s for the products, 0.0012 s on the median host"
    # A small difference is noise, whatever its ratio.
    assert failures(judge(a_job(2, 2, product=lambda n: 0.0005 if n else 0.0014), REAL, name)) == set()


@pytest.mark.parametrize("bad", range(4))
def test_the_host_that_is_slow_with_all_partners_is_blamed(bad: int) -> None:
    judged = judge(a_job(2, 2, lambda check, pair: 0.1 if bad in pair else 0.01), REAL, name)
    assert failures(judged) == {(bad, "ici"), (bad, "dcn")}


def test_both_ends_of_a_slow_cable_are_blamed() -> None:
    assert failures(judge(a_job(1, 4, slow_between((1, 2))), REAL, name)) == {(1, "ici"), (2, "ici")}
    assert failures(judge(a_job(2, 2, slow_between((0, 2))), REAL, name)) == {(0, "dcn"), (2, "dcn")}


def test_one_host_with_a_slow_interconnect_is_named_among_many() -> None:
    reports = a_job(4, 8, lambda check, pair: 0.1 if check is Check.ICI and 10 in pair else 0.01)
    assert failures(judge(reports, REAL, name)) == {(10, "ici")}


def test_a_minimum_bandwidth_holds_also_if_all_hosts_are_slow() -> None:
    reports = a_job(2, 2)
    judged = judge(reports, replace(REAL, min_gbps={Check.DCN: 20.0}), name)
    assert failures(judged) == {(process, "dcn") for process in range(4)}
    assert "at least 20 GB/s is required" in judged[0][-1].problem
    assert failures(judge(reports, replace(REAL, min_gbps={Check.DCN: 10.0}), name)) == set()


def test_wrong_data_fails_the_host_that_received_it() -> None:
    reports = a_job(2, 2)
    reports[1] = replace(reports[1], wrong_data={Check.DCN: "received wrong data from host 3", Check.ICI: ""})
    assert failures(judge(reports, REAL, name)) == {(1, "dcn")}


def test_a_host_keeps_its_own_problems() -> None:
    reports = a_job(1, 2)
    reports[1] = replace(reports[1], results=[Result(check=Check.DISK, problem="No space left on device")])
    assert failures(judge(reports, REAL, name)) == {(1, "disk")}
    assert failures([own_results(reports[0], name)]) == set()


def test_a_report_survives_its_transfer() -> None:
    report = replace(a_job(2, 2)[3], wrong_data={Check.ICI: "wrong"})
    assert report_from_json(json.loads(json.dumps(report.to_json()))) == report


def test_every_host_of_a_ring_has_at_most_one_partner_a_round() -> None:
    assert rounds(range(1)) == []
    assert rounds(range(2)) == [[(0, 1)]]
    assert rounds(range(4)) == [[(0, 1), (2, 3)], [(1, 2), (0, 3)]]
    assert rounds(range(5)) == [[(0, 1), (2, 3)], [(1, 2), (3, 4)]]
    assert rounds_within(2, 2) == [[(0, 1), (2, 3)]]
    assert rounds_between(2, 2) == [[(0, 2), (1, 3)]]
    for count in range(2, 40):
        of_ring = rounds(range(count))
        assert {host for pairs in of_ring for pair in pairs for host in pair} == set(range(count))
        for pairs in of_ring:
            hosts = [host for pair in pairs for host in pair]
            assert len(hosts) == len(set(hosts))


def test_a_chip_of_half_the_speed_is_slow_by_published_figures() -> None:
    # v5e: ten products of 4096 x 4016 x 4096 at 197 TFLOP/s (bf16) take 6.8 ms.
    seconds = 10 * 2 * 4096 * 4016 * 4096 / 197e12
    reports = a_job(2, 2, product=lambda process: seconds * (2 if process == 3 else 1))
    assert failures(judge(reports, REAL, name)) == {(3, "bf16"), (3, "int8")}
