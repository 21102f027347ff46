"""Ray on local hosts, with real raylets: losses equal those of the plain launcher, and user programs run."""

from __future__ import annotations

import ast
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from e2e.harness import DrillError, Lab, Workload, own_cluster
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
STEPS, EVERY = 600, 20  # so many that the run does not end before a host is killed
SECONDS = 300.0  # alone: 10; other tests may run at the same time
TRAINER = [
    "--config", "tiny", "--set", f"run.steps={STEPS}", "--set", f"checkpoint.every={EVERY}",
    "--set", "run.log_every=1", "--set", "data.path=corpus", "--set", "data.eval_fraction=0",
    "--set", "data.global_batch=16", "--set", "model.seq_len=16", "--set", "model.layers=1", "--set", "model.embed=32",
    "--set", "model.heads=2", "--set", "model.head_dim=8", "--set", "model.mlp=64",
]  # fmt: skip
RAY = ("--launcher", "ray")
SHIPPED = "/runtime_resources/working_dir_files/"  # where Ray unpacks code shipped by runtime_env
CORPUS = "".join(f"{number} times {number} is {number * number}.\n" for number in range(4000))
pytestmark = pytest.mark.timeout(900)


@contextmanager
def cluster(folder: Path, tpu_type: str, num_slices: int) -> Iterator[Lab]:
    """Return a cluster of its own, removed afterwards."""
    with own_cluster(folder, "rays", tpu_type, num_slices) as lab:
        yield lab
    assert not _left(lab)


def create(lab: Lab, name: str, *options: str, restarts: int = 0) -> Workload:
    return lab.create_workload(name, num_slices=2, max_restarts=restarts, trainer=TRAINER, options=options)


# A trainer that dies and is replaced is tested in the drills of e2e.
@pytest.mark.slow
def test_losses_after_a_killed_host_equal_those_of_the_plain_launcher(tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "corpus").mkdir(parents=True)
    (code / "corpus" / "squares.txt").write_text(CORPUS)
    with cluster(tmp_path, "n2-standard-4-2", 2) as lab:
        plain = create(lab, "plain", "--script-dir", str(code))
        plain.wait(SECONDS)
        run = create(lab, "rays", *RAY, "--script-dir", str(code), restarts=1)
        run.await_(lambda: run.describe()["phase"] == "Running", SECONDS)
        host = int(run.host(1, 0)["pid"])
        until(lambda: run.saved() >= EVERY, seconds=SECONDS)
        trainer = next(e["pid"] for e in run.events("start") if (e["slice"], e["host"]) == (1, 1))
        assert SHIPPED in os.readlink(f"/proc/{trainer}/cwd")  # there, the data set is the head's, too
        os.kill(host, signal.SIGKILL)
        run.wait(SECONDS)
        described = run.describe()
        assert (described["phase"], described["restarts"]) == ("Succeeded", 1)
        assert described["progress"]["replacements"] == 0
        assert {line["attempt"] for line in run.steps} == {0, 1}
        assert run.losses == plain.losses and len(plain.losses) == STEPS
        assert {(event["slice"], event["host"]) for event in run.events("done")} == set(product((0, 1), (0, 1)))


def _left(lab: Lab) -> list[str]:
    """Return the processes of ended hosts."""
    result = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                environ = (folder / "environ").read_bytes()
                if f"XPK_LOCAL_POD={lab.folder}".encode() in environ:
                    result.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return result


@pytest.mark.slow
@pytest.mark.extended  # the test of losses ships code, too
def test_changed_code_reaches_all_hosts_by_runtime_env(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / ".gitignore").write_text("helper.py\n")  # .xpkignore determines what is shipped
    (code / "mine.py").write_text(
        """
import ray, xpk_ray

def look():
    import helper, os
    return helper.VERSION, helper.__file__, os.getcwd()

ray.init(runtime_env={"env_vars": {"MINE": "1"}})
print(xpk_ray.each_host(look))
"""
    )
    with cluster(tmp_path, "n2-standard-4-2", 1) as lab:
        for version in ("one", "two"):
            (code / "helper.py").write_text(f"VERSION = {version!r}\n")
            asked = ("--cluster", lab.cluster, *RAY, "--script-dir", str(code), "--command", "python mine.py")
            lab.xpk("workload", "create", version, *asked)
            Workload(lab, version).wait(SECONDS)
            message = lab.xpk("workload", "logs", version, "--cluster", lab.cluster, "--no-prefix", capture=True)
            hosts = ast.literal_eval(next(line for line in message.splitlines() if line.startswith("[(")))
            assert len(hosts) == 2 and len({file for _, file, _ in hosts}) == 2
            for result, file, folder in hosts:
                assert result == version and SHIPPED in folder and SHIPPED in file
                assert Path(file).parent.name == Path(folder).name


@pytest.mark.slow
def test_the_documented_program_runs_and_errors_of_one_host_are_reported(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "ray.md").read_text(), re.DOTALL)
    fails = """
def check():
    if (os.environ["MEGASCALE_SLICE_ID"], os.environ["TPU_WORKER_ID"]) == ("0", "1"):
        raise ValueError("bad batch")

xpk_ray.each_host(check)
"""
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text(example + fails)
    with cluster(tmp_path, "v5litepod-8", 1) as lab:
        asked = ("--cluster", lab.cluster, *RAY, "--script-dir", str(code), "--command", "python mine.py")
        lab.xpk("workload", "create", "mine", *asked)
        run = Workload(lab, "mine")
        with pytest.raises(DrillError, match="exit code 8"):
            run.wait(SECONDS)
        message = lab.xpk("workload", "logs", "mine", "--cluster", lab.cluster, capture=True)
        for host in (0, 1):
            assert f"hello: slice 0 host {host} sees 8 chips" in message
        assert [line for line in message.splitlines() if "rror" in line] == [
            "s0/h0 │ error: slice 0 host 1: ValueError: bad batch"
        ]
        assert "ended with exit code 1" in run.describe()["reason"]
