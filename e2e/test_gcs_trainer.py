"""The trainer with everything in a bucket: nothing is lost, duplicated or partial after kills and outages."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import functools
import itertools
import json
import shutil
import signal
import sysconfig
import tempfile
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from e2e.bucket import BucketServer, Forwarding, Proxy, missing
from e2e.bucket import server as server
from tests import waiting
from tests.http_server import http_server, url_of
from tests.trainer.small import Cluster, arguments, one_host, run_alone, start
from trainer.checkpoint.stores import open_store
from trainer.config import Model
from trainer.data import batches, block_cache, dataset, prepare, reader
from trainer.data.sampler import Order
from trainer.errors import FatalError
from trainer.storage import open_place
from xpk_shared.storage.bucket import Bucket
from xpk_shared.storage.bucket_lines import BucketLines

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(900)]

STEPS, INTERVAL = 40, 5
SETTINGS = [
    f"run.steps={STEPS}", f"checkpoint.every={INTERVAL}", "run.eval_every=20", "run.log_every=1", "data.loader_hosts=1",
]  # fmt: skip


def place(server: BucketServer, name: str) -> Bucket:
    """Return a place in the bucket of the drills, with a client of its own."""
    return Bucket(client(server.url), "drills", name)


@functools.cache
def client(url: str) -> Any:
    """Return a client of the server at a URL."""
    return storage.Client(project="e2e", credentials=AnonymousCredentials(), client_options={"api_endpoint": url})


def until(condition: Callable[[], Any], job: Cluster | None = None, seconds: float = 300) -> None:
    """Wait until a condition holds; fail after a timeout or if a host ends before."""

    def reached() -> Any:
        value = condition()
        assert value or job is None or all(process.poll() is None for process in job.processes), job.logs()
        return value

    waiting.until(reached, seconds=seconds, report=lambda: job.logs() if job else "")


def last_step(job: Cluster) -> int:
    """Return the newest step in the job's log."""
    lines = [line.split() for line in job.logs().splitlines() if line.startswith("step ")]
    return max((int(words[1]) for words in lines), default=0)


@pytest.fixture(scope="module")
def text(server: BucketServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return some text in a folder; the same text is in the bucket."""
    folder = tmp_path_factory.mktemp("text")
    for name in ("argparse.py", "ast.py", "json/decoder.py", "json/encoder.py", "email/message.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(Path(sysconfig.get_paths()["stdlib"], name), folder / name)
        place(server, f"text/{name}").write((folder / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def undisturbed(text: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Return the losses of an undisturbed run in a folder."""
    job = start(tmp_path_factory.mktemp("calm"), [*SETTINGS, f"data.path={text}"])
    assert job.exit_codes(600) == [0, 0], job.logs()
    assert sorted(job.losses()) == list(range(1, STEPS + 1))
    return job.losses()


def start_in_bucket(server: BucketServer, logs: Path, name: str, *settings: str, **options: Any) -> Cluster:
    """Start a job with text and output in the bucket."""
    out = place(server, name)

    def read(file: str) -> str:
        return (out / file).read().decode() if (out / file).is_file() else ""

    chosen = [*SETTINGS, "data.path=gs://drills/text", *settings]
    return start(logs, chosen, bucket=f"gs://drills/{name}", read=read, **options)


def test_after_a_kill_and_damage_training_resumes_from_the_newest_complete_checkpoint(
    server: BucketServer, undisturbed: dict[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = place(server, "killed/checkpoints")
    first = start_in_bucket(server, tmp_path, "killed", faults={0: f"hang:{4 * INTERVAL}"})  # it cannot end before
    until(lambda: len(open_store(checkpoints).steps()) >= 2, first)
    first.processes[0].send_signal(signal.SIGKILL)
    codes = first.exit_codes()  # without its coordinator JAX may abort a host before it exits by itself
    assert codes[0] == -9 and codes[1] in (75, -signal.SIGABRT), first.logs()

    *_, before, newest = open_store(checkpoints).steps()
    largest = max(checkpoints.walk(frozenset()), key=lambda entry: (entry.name.startswith(f"{newest}/"), entry.size))
    content = bytearray((checkpoints / largest.name).read())
    content[len(content) // 2] ^= 1
    (checkpoints / largest.name).write(bytes(content))
    (checkpoints / "999" / "1" / "manifest.ocdbt").write(b"a save that was cut off")

    seen = len(server.requests())
    monkeypatch.setenv("XPK_RESTART_CAUSE", '{"attempt": 1}')  # like the supervisor of a restart in place
    second = start_in_bucket(server, tmp_path, "killed", attempt=1, blind="gs://drills/blind")
    assert second.exit_codes(600) == [0, 0], second.logs()
    (skipped,) = [event for event in second.events(0) if event["event"] == "restore_skipped"]
    what, _, arrays = skipped["reason"].partition(" (")
    assert skipped["step"] == newest
    assert what == f"{largest.name.removeprefix(f'{newest}/')} has changed since it was written"
    assert arrays.startswith(("arrays opt.", "arrays params."))
    assert f"checkpoint gs://drills/killed/checkpoints/{newest} is damaged" in second.logs()
    restored = [event for event in second.events(0) if event["event"] == "restore"]
    assert [(event["step"], event["read"]) for event in restored] == [(before, True)]
    assert "slice 1 host 0: attempt 1 resuming from step" in second.logs() and "(peer)" in second.logs()
    assert not [line for line in server.requests()[seen:] if "GET" in line and "blind%2Fcheckpoints" in line]
    assert not [name for name in checkpoints.folders() if name == "999"]

    assert place(server, "killed/restarts.jsonl").read() == b'{"attempt": 1}\n'
    again = second.losses()
    assert sorted(again) == list(range(before + 1, STEPS + 1))
    assert first.losses() | again == undisturbed  # metrics of committed checkpoints were in the bucket before
    result = json.loads(place(server, "killed/result.json").read())
    assert float(result["initial_loss"]).hex() == undisturbed[1]
    assert float(result["final_loss"]).hex() == undisturbed[STEPS]


def test_an_unreachable_bucket_loses_no_line_and_no_step(
    server: BucketServer, undisturbed: dict[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    monkeypatch.setenv("PLANTED_GATE", str(gate))
    job = start_in_bucket(server, tmp_path, "away", faults={0: f"held:{2 * INTERVAL}"})
    until(lambda: last_step(job) >= INTERVAL + 1, job)
    server.pause()
    gate.touch()
    due, back = -(-last_step(job) // INTERVAL) * INTERVAL, time.monotonic() + 10
    until(lambda: time.monotonic() > back and last_step(job) >= due, job, 60)
    server.resume()
    assert job.exit_codes(600) == [0, 0], job.logs()
    lines = [json.loads(line) for line in job.read("metrics.jsonl").splitlines()]
    assert [line["loss_hex"] for line in lines if "loss_hex" in line] == list(undisturbed.values())
    assert [line["step"] for line in lines if "eval_loss" in line] == [20, STEPS]
    for slice_id in (0, 1):
        names = [event["event"] for event in job.events(slice_id)]
        assert (names.count("start"), names.count("step"), names.count("done")) == (1, STEPS, 1)
    assert not place(server, "away/metrics.jsonl.parts").is_folder()
    store = open_store(place(server, "away/checkpoints"))
    assert store.steps() == [STEPS - 2 * INTERVAL, STEPS - INTERVAL, STEPS]
    assert not any(map(store.damage, store.steps()))


class _Silent(Forwarding):
    """Never responds to the first write of an array, although the bucket has done it."""

    silent: ClassVar[list[str]] = []

    def treat(self, body: bytes) -> None:
        answer = self.forward(body)
        if "/upload/" in self.path and "ocdbt" in self.path and not self.silent:
            self.silent.append(self.path)
            self.rfile.read(1)  # returns when the client closes the connection
        else:
            self.respond(*answer)


def test_an_answer_that_never_comes_delays_a_checkpoint_and_loses_nothing(
    server: BucketServer, undisturbed: dict[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(server, _Silent) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        job = start_in_bucket(server, tmp_path, "silent")
        assert job.exit_codes(600) == [0, 0], job.logs()
        proxy.shutdown()
    assert _Silent.silent
    assert job.losses() == undisturbed
    store = open_store(place(server, "silent/checkpoints"))
    assert store.steps() == [STEPS - 2 * INTERVAL, STEPS - INTERVAL, STEPS]
    names = [event["event"] for event in job.events(0)]
    assert names.count("save") == STEPS // INTERVAL and "save_failed" not in names


@pytest.mark.extended
@pytest.mark.timeout(3600)
def test_an_outage_that_outlasts_the_retries_costs_only_a_checkpoint(
    server: BucketServer, undisturbed: dict[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, gate = 2 * INTERVAL, tmp_path / "gate"
    monkeypatch.setenv("PLANTED_GATE", str(gate))
    job = start_in_bucket(server, tmp_path, "outage", faults={0: f"held:{lost}"})
    until(lambda: last_step(job) > INTERVAL and open_store(place(server, "outage/checkpoints")).steps(), job)
    server.pause()
    gate.touch()
    until(lambda: f"checkpoint of step {lost} not saved" in job.logs(), job, 3000)
    server.resume()
    assert job.exit_codes(1200) == [0, 0], job.logs()
    assert job.losses() == undisturbed
    store = open_store(place(server, "outage/checkpoints"))
    assert store.steps() == [STEPS - 2 * INTERVAL, STEPS - INTERVAL, STEPS]
    assert not any(map(store.damage, store.steps()))
    failed = [(event["step"], event["reason"]) for event in job.events(0) if event["event"] == "save_failed"]
    assert [step for step, _ in failed] == [lost], failed


def test_a_host_of_an_earlier_attempt_commits_nothing(server: BucketServer) -> None:
    earlier, later = open_store(place(server, "two")), open_store(place(server, "two"))
    old = earlier.begin_attempt(0)
    place(server, f"two/5/{old}/array").write(b"old")
    new = later.begin_attempt(0)  # the number restarts when a workload is created again
    assert not place(server, f"two/5/{old}/array").is_file()
    place(server, f"two/5/{old}/array").write(b"old, late")
    place(server, f"two/5/{new}/array").write(b"new")
    with pytest.raises(PermissionError, match="a newer attempt has taken over"):
        earlier.commit(5, old, {"tokens": 1})
    assert later.steps() == []
    later.commit(5, new, {"tokens": 2})
    later.commit(5, new, {"tokens": 2})  # as if the response to the first was lost
    assert later.steps() == [5] and later.damage(5) == "" and later.notes(5)["tokens"] == 2
    assert later.content(5, later.notes(5)).endswith(f"two/5/{new}")
    place(server, f"two/5/{new}/array").remove()
    assert later.damage(5) == f"{new}/array is missing"
    later.quarantine(5)
    assert later.steps() == []
    later.remove_old(1, 5)
    assert place(server, "two").folders() == []


def test_the_manifest_is_removed_first(server: BucketServer) -> None:
    store = open_store(place(server, "old"))
    attempt_id = store.begin_attempt(0)
    for step in (1, 2):
        place(server, f"old/{step}/{attempt_id}/array").write(b"content")
        store.commit(step, attempt_id, {})
    seen = len(server.requests())
    store.remove_old(1, 2)
    removed = [line for line in server.requests()[seen:] if "DELETE" in line]
    assert "manifest.json" in removed[0] and len(removed) > 1
    assert store.steps() == [2] and place(server, "old").folders() == ["2"]


class _Unreliable(Forwarding):
    """Of every second composition the request or the response is lost."""

    composed: ClassVar[list[str]] = []

    def treat(self, body: bytes) -> None:
        composes = "/compose" in self.path
        if composes:
            self.composed.append(self.path)
        lost = composes and len(self.composed) % 4
        if lost == 1:
            return  # before it reached the bucket
        answer = self.forward(body)
        if lost != 3:  # then it is lost after the bucket had done it
            self.respond(*answer)


def test_lost_responses_neither_lose_nor_duplicate_lines(server: BucketServer) -> None:
    with Proxy(server, _Unreliable) as proxy:
        near = BucketServer(proxy.url, server.log, server.process)
        place(server, "lines.jsonl.parts/left-behind").write(b"of a killed process")
        lines = BucketLines(place(near, "lines.jsonl"))
        for n in range(6):
            lines.write(b"%d\n" % n)
            lines.flush(60)
        proxy.shutdown()
    assert len(_Unreliable.composed) >= 7
    assert place(server, "lines.jsonl").read() == b"0\n1\n2\n3\n4\n5\n"
    until(lambda: not place(server, "lines.jsonl.parts").is_folder(), seconds=30)


def test_a_token_file_is_prepared_and_verified_in_the_bucket(server: BucketServer, text: Path) -> None:
    made = run_alone("prepare", "gs://drills/text", "--out", "gs://drills/tokens", STORAGE_EMULATOR_HOST=server.url)
    assert made.returncode == 0, made.stderr
    tokens = made.stdout.strip()
    assert tokens.startswith("gs://drills/tokens/tokens-") and tokens.endswith(".json")
    size = ("--num-slices", "1", "--hosts-per-slice", "1", "--chips-per-host", "2")
    for path, code in ((tokens, 0), ("gs://drills/text", 0), ("gs://drills/no-text", 42), ("gs://nowhere/text", 42)):
        checked = run_alone(
            "check", *size, *arguments([f"data.path={path}"]), STORAGE_EMULATOR_HOST=server.url,
            XPK_OUTPUT_DIR="gs://drills/checked",
        )  # fmt: skip
        assert checked.returncode == code, checked.stdout + checked.stderr
        if code:
            (problem,) = json.loads(checked.stdout)["problems"]
            assert f"data.path={path!r} does not exist here" in problem["message"]


class _Forbidding(BaseHTTPRequestHandler):
    """Responds like the storage to a user without permission."""

    def log_message(self, *_: Any) -> None:
        """Be quiet."""

    def _refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = b'{"error": {"code": 403, "message": "somebody does not have storage.objects.create access"}}'
        self.send_response(403)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = _refuse


def test_a_missing_permission_is_reported_in_one_line() -> None:
    with http_server(_Forbidding) as forbidding:
        where = {"STORAGE_EMULATOR_HOST": url_of(forbidding), "XPK_OUTPUT_DIR": "gs://drills/run"}
        ran = run_alone(*arguments(["data.max_bytes=50000"]), **where)
    assert ran.returncode == 42, ran.stdout + ran.stderr
    assert ran.stderr.count("\n") == 1 and "storage.objects.create" in ran.stderr, ran.stderr


@pytest.mark.extended
def test_a_restart_reuses_compiled_programs(server: BucketServer, tmp_path: Path) -> None:
    where = {"STORAGE_EMULATOR_HOST": server.url, "XPK_OUTPUT_DIR": "gs://drills/compiled"}
    for attempt, cached in enumerate((False, True)):
        settings = [f"run.steps={2 + attempt}", "data.max_bytes=50000", "optim.warmup=1"]
        ran = run_alone(*arguments(settings), **one_host(tmp_path, attempt), **where)
        assert ran.returncode == 0, ran.stderr
        lines = place(server, "compiled/events/s0-h0.jsonl").read().splitlines()
        events = [event for event in map(json.loads, lines) if event["event"] == "compile"]
        made = {event["cached"] for event in events if (event["program"], event["attempt"]) == ("evaluate", attempt)}
        assert made == {cached}


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_missing_bucket_is_reported_in_one_line(server: BucketServer, command: str) -> None:
    size = ("--num-slices", "1", "--hosts-per-slice", "1", "--chips-per-host", "2") if command == "check" else ()
    where = {"STORAGE_EMULATOR_HOST": server.url, "XPK_OUTPUT_DIR": "gs://nowhere/run"}
    ran = run_alone(command, *size, *arguments(["data.max_bytes=50000"]), **where)
    assert ran.returncode == 42, ran.stdout + ran.stderr
    output = ran.stderr if command == "train" else ran.stdout
    assert output.count("\n") == 1 and "gs://nowhere/run" in output and " not found" in output, output


def test_a_host_copies_the_files_of_its_shards_and_names_a_changed_file(
    server: BucketServer, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = prepare.prepare("gs://drills/text", open_place("gs://drills/many"), file_tokens=20_000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the disk of another host
    counts = reader.counts(made, Model(seq_len=16))
    read, order = reader.Reader(made, Model(seq_len=16), counts), Order(0, 8, sum(counts), shards=2)
    read.fetch([order.range_of(0)])
    for ids_B in itertools.islice(batches.train_ids(order, 0), 50):
        read(ids_B[:4])  # the rows of the first shard, which ends in the second of four files
    copied = [path.stat().st_size for path in tmp_path.glob("xpk-trainer-*/*")]
    assert sorted(copied) == sorted(file.tokens for file in made.files[:2])
    assert len(counts) == 4 and counts[0] < sum(counts) // 2 < counts[0] + counts[1]
    victim = made.files[-1]
    content = bytearray(made.place(victim.name).read())
    content[7] ^= 1
    made.place(victim.name).write(bytes(content))
    with pytest.raises(FatalError, match=f"gs://drills/many/{victim.name} is damaged"):
        read(np.array([sum(counts) - 1]))


def test_a_host_reads_only_the_blocks_of_its_examples_if_that_is_less(
    server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = np.random.default_rng(0).integers(97, 123, 8_000_000, np.uint8).tobytes()
    place(server, "long-text/words.txt").write(words)
    made = prepare.prepare("gs://drills/long-text", open_place("gs://drills/long"), file_tokens=2**28)
    (file,), counts = made.files, reader.counts(made, Model(seq_len=16))
    order = Order(0, 8, sum(counts))
    steps = list(itertools.islice(batches.train_ids(order, 0), 3))

    def host(name: str, first_row: int) -> tuple[reader.Reader, list[Any], int, int]:
        """Read a host's half of three batches with an empty disk; return also the bytes and requests."""
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
        (tmp_path / name).mkdir(exist_ok=True)
        sent, asked = server.sent(), len(server.requests())
        read = reader.Reader(made, Model(seq_len=16), counts)
        read.fetch([range(sum(counts))], examples=4 * len(steps))
        rows = [read(ids_B[first_row : first_row + 4]) for ids_B in steps]
        return read, rows, server.sent() - sent, len(server.requests()) - asked

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    whole = reader.Reader(made, Model(seq_len=16), counts)
    whole.fetch([range(sum(counts))])
    for name, first_row in (("one", 0), ("two", 4)):
        blocks = {n * 16 // dataset.BLOCK for ids_B in steps for n in ids_B[first_row : first_row + 4].tolist()}
        read, rows, sent, asked = host(name, first_row)
        for row_NS, ids_B in zip(rows, steps, strict=True):
            np.testing.assert_array_equal(row_NS, whole(ids_B[first_row : first_row + 4]))
        assert len(blocks) >= 10 and sent < (len(blocks) + 4) * dataset.BLOCK < file.tokens // 6
        assert asked <= len(blocks) + 4, "one per block, and a few for the index and metadata"
        _, again, sent, asked = host(name, first_row)
        assert sent < dataset.BLOCK and asked <= 4, "a restart finds the blocks on its disk"
        np.testing.assert_array_equal(again, rows)
    (disk,) = (tmp_path / "two").glob("xpk-trainer-*/*.parts")
    assert disk.stat().st_size == file.tokens and disk.stat().st_blocks * 512 < file.tokens // 4
    content = bytearray(made.place(file.name).read())
    for at in range(0, len(content), dataset.BLOCK):
        content[at] ^= 1
    made.place(file.name).write(bytes(content))
    unread = next(n for n in range(sum(counts)) if n * 16 // dataset.BLOCK not in blocks)
    with pytest.raises(FatalError, match=f"gs://drills/long/{file.name}' is damaged: bytes "):
        read(np.array([unread]))


def test_copying_is_worthwhile_for_a_host_that_reads_most_of_the_data() -> None:
    assert block_cache.is_worthwhile(10, 100, 4 * 11 * 2 * dataset.BLOCK)
    assert not block_cache.is_worthwhile(10, 100, 3 * 10 * dataset.BLOCK)
    assert list(block_cache.runs([5, 1, 2, 9, 2])) == [(1, 3), (5, 6), (9, 10)] and list(block_cache.runs([])) == []
