"""The file of a program's progress: its variables under the supervisor, and its copy in a bucket."""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.http_server import http_server, url_of
from tests.xpk_shared.supervised import FIRST, IN_PLACE, WITH_SHORT_GRACE, Start
from xpk_shared.supervisor.bucket_copy import BucketCopy
from xpk_shared.supervisor.progress import progress_path

STEP = "echo '{\"step\": 1}' >> $XPK_PROGRESS_FILE"


def lines(content: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines()]


def test_only_slice_0_host_0_has_a_file() -> None:
    def of(slice_id: str, host: str, folder: str = "/out") -> str | None:
        return progress_path({"MEGASCALE_SLICE_ID": slice_id, "TPU_WORKER_ID": host, "XPK_OUTPUT_DIR": folder})

    assert of("0", "0") == "/out/progress.jsonl"
    assert of("0", "1") == of("1", "0") == of("1", "1") == "/dev/null"
    assert of("0", "0", "gs://bucket/out") is None and progress_path({}) is None


def test_the_supervisor_notes_the_attempts_of_a_program_that_logs_none(start: Start, tmp_path: Path) -> None:
    command, variables = f"{STEP}; {FIRST} && exit 3; exit 0", {**IN_PLACE, "XPK_OUTPUT_DIR": str(tmp_path / "out")}
    hosts = [start(number, command, program=WITH_SHORT_GRACE, **variables) for number in range(4)]
    for host in hosts:
        host.ends(0)
    step, again, last = lines((tmp_path / "out" / "progress.jsonl").read_text())
    assert step == last == {"step": 1}
    assert again["attempt"] == 1 and abs(again["started"] - time.time()) < 60


def test_programs_import_the_module_beside_the_secret_but_nothing_else(start: Start, tmp_path: Path) -> None:
    (tmp_path / "xpk_run.py").write_text("print('the module')")
    host = start(0, 'echo "<$PYTHONPATH>"; cd /; python3 -c "import xpk_run"', PYTHONPATH="/mine")
    host.says("the module")
    assert f"</mine:{tmp_path}>" in host.log.read_text()


class Bucket(BaseHTTPRequestHandler):
    """The part of Google Cloud Storage's JSON API that a copy uses. `lose` drops the answer to a matching request."""

    objects: dict[str, tuple[bytes, int]]
    lose: Callable[[str], bool]

    def log_message(self, *_: object) -> None:
        """Do nothing."""

    def do_GET(self) -> None:
        self._answer(self._name())

    def do_DELETE(self) -> None:
        del self.objects[self._name()]
        self._send(200, {})

    def do_POST(self) -> None:
        body, query = self.rfile.read(int(self.headers["Content-Length"])), urllib.parse.urlsplit(self.path).query
        options = dict(urllib.parse.parse_qsl(query))
        name = options.get("name") or self._name()
        if self.path.partition("?")[0].endswith("/compose"):
            body = b"".join(self.objects[source["name"]][0] for source in json.loads(body)["sourceObjects"])
        generation = self.objects.get(name, (b"", 0))[1]
        if options.get("ifGenerationMatch", str(generation)) != str(generation):
            self._send(412, {})
            return
        self.objects[name] = body, time.time_ns()
        self._answer(name)

    def _name(self) -> str:
        path = urllib.parse.urlsplit(self.path).path.removesuffix("/compose")
        return urllib.parse.unquote(path.rpartition("/")[2])

    def _answer(self, name: str) -> None:
        if name not in self.objects:
            self._send(404, {})
            return
        content, generation = self.objects[name]
        self._send(200, {"size": str(len(content)), "generation": str(generation)})

    def _send(self, status: int, answer: dict[str, str]) -> None:
        if self.lose(self.path):
            self.close_connection = True
            return
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def bucket() -> Iterator[tuple[type[Bucket], str]]:
    """Yield a bucket's handler and its address."""
    made = type("Made", (Bucket,), {"objects": {}, "lose": staticmethod(lambda path: False)})
    with http_server(made) as server:
        yield made, url_of(server)


def test_lines_are_appended_to_an_object_in_a_bucket(bucket: tuple[type[Bucket], str], tmp_path: Path) -> None:
    kept, server = bucket
    file = tmp_path / "progress.jsonl"
    for attempt in range(2):
        file.write_text("")
        copy = BucketCopy(str(file), "gs://runs/w/progress.jsonl", server)
        copy.start(json.dumps({"attempt": attempt}).encode() + b"\n")
        with file.open("a") as opened:
            opened.write('{"step": 1}\n{"step": 2}\n{"st')
        copy.close()
    (content, _) = kept.objects["w/progress.jsonl"]
    assert lines(content.decode()) == [
        {"attempt": 0},
        {"step": 1},
        {"step": 2},
        {"attempt": 1},
        {"step": 1},
        {"step": 2},
    ]
    assert list(kept.objects) == ["w/progress.jsonl"], "parts are removed"


def test_no_line_is_lost_or_repeated_if_an_answer_is_lost(bucket: tuple[type[Bucket], str], tmp_path: Path) -> None:
    kept, server = bucket
    file, lost = tmp_path / "progress.jsonl", ["/compose", "/compose", "uploadType"]
    kept.objects["w/progress.jsonl"] = b'{"step": 0}\n', 1

    def lose(path: str) -> bool:
        if lost and lost[-1] in path:
            lost.pop()
            return True
        return False

    kept.lose = staticmethod(lose)
    file.write_text('{"step": 1}\n')
    copy = BucketCopy(str(file), "gs://runs/w/progress.jsonl", server)
    copy.start(b"")
    copy.close()
    assert lines(kept.objects["w/progress.jsonl"][0].decode()) == [{"step": 0}, {"step": 1}] and len(lost) == 1


def test_a_supervised_program_reaches_a_bucket(start: Start, bucket: tuple[type[Bucket], str], tmp_path: Path) -> None:
    kept, server = bucket
    output = {"XPK_OUTPUT_DIR": "gs://runs/w", "STORAGE_EMULATOR_HOST": server, "TMPDIR": str(tmp_path)}
    hosts = [start(number, f"echo up; {STEP}; sleep 0.2", **output) for number in range(4)]
    for host in hosts:
        host.ends(0)
    beginning, step = lines(kept.objects["w/progress.jsonl"][0].decode())
    assert beginning["attempt"] == 0 and step == {"step": 1}
    assert not list(tmp_path.glob("xpk-*")), "the file of the host is removed"


def test_a_bucket_that_does_not_answer_is_reported_once_and_does_not_hold_the_host(start: Start) -> None:
    output = {"XPK_OUTPUT_DIR": "gs://runs/w", "STORAGE_EMULATOR_HOST": "http://127.0.0.1:9"}
    host = start(0, f"echo up; {STEP}", slices=1, **output)
    assert host.process.wait(30) == 0
    assert host.log.read_text().count("cannot copy the progress to gs://runs/w/progress.jsonl") == 1
