"""`xpk plan capacity`."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Xpk
from tests.cli.conftest import dev as dev
from tests.cli.conftest import state as state
from tests.cli.conftest import xpk as xpk
from tests.waiting import until

RUN = ("plan", "capacity", "--config", "64b", "--tokens", "1e12", "--start", "2027-01-01")
SMALL = (*RUN, "--tpu-type", "v6e-256", "--num-slices", "4", "--num-slices", "8")


def test_choices_are_printed_with_commands_and_without_a_promise(xpk: Xpk) -> None:
    done = xpk(*SMALL)
    assert done.code == 0 and "lower bound, never measured on a TPU" in done.out
    assert "8 x v6e-256" in done.out and "xpk workload create train" in done.out


def test_spot_slices_compete_at_their_price(xpk: Xpk) -> None:
    spot = ("--spot-price", "v6e=0.5", "--spot-mtbf-chip-hours", "20000")
    choices = xpk(*SMALL, *spot, "-o", "json").data["choices"]
    cheapest = choices[-1]
    assert cheapest["spot"] and "--spot" in cheapest["commands"][0]
    assert not choices[0]["spot"]  # fails less often, so it is the fastest
    dear = xpk(*SMALL, "--spot-price", "v6e=50", "--spot-mtbf-chip-hours", "20000", "-o", "json").data["choices"]
    assert not any(choice["spot"] for choice in dear)


def test_int8_products_are_searched_on_request(xpk: Xpk) -> None:
    plain, int8 = (xpk(*SMALL, *more, "-o", "json").data for more in ((), ("--int8",)))
    assert int8["candidates"] == 4 * plain["candidates"]
    assert int8["choices"][0]["days"] < plain["choices"][0]["days"]
    assert any("int8 products change the results" in note for note in int8["notes"])


def test_limits_are_kept_or_refused_with_the_closest(xpk: Xpk) -> None:
    within = xpk(*SMALL, "--by", "2027-01-05", "-o", "json").data["choices"]
    assert [choice["num_slices"] for choice in within] == [8]
    done = xpk(*SMALL, "--by", "2027-01-02", "--budget", "1000")
    assert done.code == 5 and "the fastest (8 x v6e-256: 2.6 days" in done.err


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (("--by", "soon", "--price", "v5p"), ("--by 'soon' is not a date", "--price 'v5p' is not FAMILY=DOLLARS")),
        (("--by", "2026-01-01"), ("--by 2026-01-01T00:00+00:00 is not after the start",)),
        (("--price", "v9=1", "--spot-price", "v5p=1"), ("unknown accelerator family 'v9'", "--spot-price requires")),
        (("--price", "v6=1"), ("unknown accelerator family 'v6'", "did you mean 'v6e'?")),
        (("--price", "v5e=1"), ("unknown accelerator family 'v5e'", "did you mean 'v5litepod'?")),
        (("--tpu-type", "v6e-3"), ("unknown accelerator type 'v6e-3'",)),
        (("--tpu-type", "v4-32"), ("no price of v4 in us-central1 is known",)),
        (("--tpu-type", "h100-80gb-8"), ("TPUs only",)),
        (("--set", "model.embd=1"), ("unknown setting 'model.embd'",)),
    ],
)
def test_wrong_requests_are_refused_with_all_problems(
    arguments: tuple[str, ...], messages: tuple[str, ...], xpk: Xpk
) -> None:
    done = xpk(*RUN, *arguments)
    assert done.code == 2 and done.out == "" and "Traceback" not in done.err
    assert all(message in done.err for message in messages), done.err


def test_verification_without_the_compiler_is_refused_before_the_search(
    xpk: Xpk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "libtpu", None)  # as if it were not installed
    done = xpk(*RUN, "--verify", "3")
    assert done.code == 7 and "--verify requires libtpu" in done.err


def test_the_commands_are_accepted(xpk: Xpk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "no-key.json"))  # plans for an empty project
    for choice in xpk(*SMALL, "-o", "json").data["choices"]:
        cluster, workload = map(shlex.split, choice["commands"])
        values = {
            "PROJECT": "my-project",
            "ZONE": "us-central1-a",
            "NAME": "big",
            "data.path=DATA": "data.path=gs://b/t.json",
        }
        words = [values.get(word, word) for word in cluster[1:]]
        created = xpk(*words, "--dry-run")
        assert created.code == 0, created.err
        words = [values.get(word, word) for word in workload[1:]]
        planned = xpk(*words[:2], "--dry-run", "--tpu-type", choice["tpu_type"], *words[2:])
        assert planned.code == 0, planned.err


def test_starts_in_the_queue_of_a_cluster_are_estimated(dev: Xpk) -> None:
    assert dev("workload", "create", "runs", "--num-slices", "2", "--command", "sleep 1000").code == 0
    until(lambda: dev("workload", "status", "runs", "-o", "json").data["phase"] == "Running")
    search = ("plan", "capacity", "--config", "tiny", "--tokens", "1e9", "--tpu-type")
    (alone,) = dev(*search, "v5litepod-8", "--num-slices", "2", "-o", "json").data["choices"]
    assert alone["start"] is None
    fits = (*search, "v5litepod-8", "--num-slices", "2", "--cluster", "dev")
    (choice,) = dev(*fits, "-o", "json").data["choices"]
    assert choice["start"]["rests_on"][0].startswith("starts when default/runs ends")
    assert re.search(r" START *\n.* in (?:23h5\dm|1d00h) \(", dev(*fits).out)
    for kind, number in (("v5litepod-8", "4"), ("v5litepod-16", "1")):
        beyond = dev(*search, kind, "--num-slices", number, "--cluster", "dev")
        assert beyond.code == 0 and " beyond the quota" in beyond.out and "Note: " in beyond.out
    wrong = dev(*fits, "--queue", "multislice-quue")
    assert wrong.code == 2 and "queue 'multislice-quue' not found; choose from multislice-queue" in wrong.err
    assert dev(*search, "v5litepod-8", "--cluster", "dex").code == 3
