"""Every wait that may hang is watched, and the right host is at fault."""

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.trainer.checkpoint.tiers import tier
from tests.trainer.hosts.connections import connected
from tests.trainer.small import SETTINGS
from tests.waiting import until
from trainer import config, evaluation, resume, saves, setup, train
from trainer.checkpoint import shards as pieces
from trainer.checkpoint.finite_check import Finite
from trainer.checkpoint.local import LocalTier
from trainer.errors import FatalError, Problem
from trainer.hosts.measurements import Measurements
from trainer.models.family import Sums
from trainer.observe.profiler import Profiler
from trainer.observe.step_log import Pending
from trainer.observe.stragglers import StragglerCheck
from trainer.parallel.mesh import ALL
from trainer.schedule import Action
from trainer.step.compile_cache import CompileCache
from trainer.step.compiler import Compiler
from trainer.storage import open_place
from trainer.storage.signed import SignedFiles

SECONDS = 60
STATE = {"params": jax.numpy.zeros(4)}
MESH = Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1, 1), ALL)


@dataclasses.dataclass
class Noted:
    """Replaces a watchdog: records the current wait of the host."""

    now: tuple[str, Callable[[], bool], float] | None = None
    all: list[str] = dataclasses.field(default_factory=list)

    @contextlib.contextmanager
    def waiting(
        self, subject: str, step: int, *, is_own: Callable[[], bool] = lambda: False, min_seconds: float = 0.0
    ) -> Iterator[None]:
        outer, self.now = self.now, (subject, is_own, min_seconds)
        self.all.append(subject)
        try:
            yield
        finally:
            self.now = outer

    @property
    def told(self) -> tuple[str, bool, float]:
        """Return the host's current wait, whether it is its own work, and its minimum timeout in seconds."""
        assert self.now is not None, "there is no wait"
        what, own, least = self.now
        return what, own(), least


class Hang:
    """A call that never ends until the test has."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.begun.set()
        assert self.over.wait(SECONDS)


@pytest.fixture
def hang() -> Any:
    made = Hang()
    yield made
    made.over.set()


@contextlib.contextmanager
def under_way(hang: Hang, action: Callable[[], Any]) -> Any:
    """Run a call until it hangs; release it afterwards."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    assert hang.begun.wait(SECONDS)
    yield
    hang.over.set()
    thread.join(SECONDS)
    assert not thread.is_alive()


def run_of(folder: Path, *settings: str, **parts: Any) -> Any:
    """Return a run of one host, with only these parts."""
    chosen = config.load("tiny", [*SETTINGS, "checkpoint.hang_seconds=900", *settings])
    host = SimpleNamespace(
        process_id=0, name=lambda process: "host", slice_id=0, worker_id=0, attempt=0, is_elastic=False
    )
    quiet = SimpleNamespace(write=lambda *words, **more: None)
    job = SimpleNamespace(
        config=chosen, watchdog=Noted(), host=host, is_first=False, leads=False, slices=None, out=folder, events=quiet
    )
    job.measurements = Measurements()
    return SimpleNamespace(job=job, read=None, **parts)


def two_tiers(folder: Path, **doubles: Any) -> list[LocalTier]:
    made = [tier(folder, peers, **doubles) for peers in connected(2)[0]]
    for item in made:
        item._session = "one"
    return made


def test_the_host_with_a_hung_disk_is_at_fault(tmp_path: Path, hang: Hang) -> None:
    def write(folder: Path, *rest: Any) -> None:
        hang() if "s1-h0" in str(folder) else pieces.write(folder, *rest)

    well, ill = two_tiers(tmp_path, write=write)
    runs = [run_of(tmp_path, local=item) for item in (well, ill)]
    for run in runs:
        saves.save_locally(run, 2, STATE, tokens=2)
        assert run.job.watchdog.now is None
    assert hang.begun.wait(SECONDS)
    threads = [
        threading.Thread(target=saves.save_locally, args=(run, 4, STATE), kwargs={"tokens": 4}, daemon=True)
        for run in runs
    ]
    for thread in threads:
        thread.start()
    written = well.place / ".written-2"
    until(lambda: written.exists() and not well.busy and all(run.job.watchdog.now for run in runs), every=0.01)
    assert all(thread.is_alive() for thread in threads)
    what = "the local checkpoint of step 4, or the one before it"
    assert [run.job.watchdog.told for run in runs] == [(what, False, 900.0), (what, True, 900.0)]
    hang.over.set()
    for thread in threads:
        thread.join(SECONDS)
    assert not any(item.is_alive() for item in threads)


def test_the_wait_for_the_last_local_checkpoint_has_a_timeout(tmp_path: Path, hang: Hang) -> None:
    checkpoints = SimpleNamespace(save=lambda *_, **__: None, wait=lambda: "", busy=True)
    run = run_of(tmp_path, checkpoints=checkpoints, local=SimpleNamespace(wait=hang, busy=False))
    final = functools.partial(saves.save, run, 8, STATE, tokens=8, disk_low=False, is_final=True)
    with under_way(hang, final):
        # Not at fault because of its own part of the other tier.
        assert run.job.watchdog.told == ("the last local checkpoint", False, 900.0)
    assert run.job.watchdog.now is None


@pytest.mark.parametrize("cleared", [False, True])
def test_the_end_of_a_run_has_a_timeout(cleared: bool, tmp_path: Path, hang: Hang) -> None:
    local = SimpleNamespace(clear=(lambda: None) if cleared else hang, busy=not cleared)
    closed, ended = SimpleNamespace(close=lambda: None), SimpleNamespace(end=lambda at: None)
    stopped = SimpleNamespace(stop=lambda: None)
    run = run_of(tmp_path, local=local, profiler=closed, progress=ended, record=stopped)
    run.job.peers = SimpleNamespace(barrier=hang, leave=lambda: None)
    run.job.watchdog.stop, run.job.lease = lambda: None, SimpleNamespace(release=lambda: None)
    with under_way(hang, lambda: train._finish(run, 8, tokens=8, eval_loss=None)):
        what = "all hosts to finish" if cleared else "the removal of its local checkpoints"
        assert run.job.watchdog.told == (what, not cleared, 900.0)


@pytest.mark.parametrize("reads", [0, 1])
def test_reading_an_evaluation_batch_is_own_work(reads: int, tmp_path: Path, hang: Hang) -> None:
    began = []

    def blocks(ids: Any) -> Any:
        began.append(ids)
        if len(began) > reads:
            hang()
        return ids

    run = run_of(tmp_path, blocks=blocks, batch=8, records=32, held_out=16)
    run.progress = SimpleNamespace(record_evaluation=lambda *words, **scores: None)
    sums = Sums(jnp.float32(1), jnp.float32(1), None, {})
    watchdog, done = run.job.watchdog, threading.Event()

    def evaluate(*arguments: Any) -> Any:
        assert watchdog.told == ("the evaluation after step 5", False, 300.0)
        done.set()
        return sums

    programs = evaluation.EvalPrograms(sums=evaluate, translate=None)
    with under_way(hang, lambda: evaluation.evaluate(run, programs, {"params": {}}, step=5)):
        assert not reads or done.wait(SECONDS)
        while len(watchdog.all) < 2 * reads + 1:  # it continues with the second batch
            pass
        assert watchdog.told == ("its data of the evaluation after step 5", True, 300.0)
    assert watchdog.now is None
    assert watchdog.all.count("the evaluation after step 5") == 2


def test_joining_hosts_has_timeouts(tmp_path: Path, hang: Hang) -> None:
    run = run_of(tmp_path)
    run.job.host.processes, run.job.stop = 2, SimpleNamespace(arm=lambda: None)
    run.job.peers = SimpleNamespace(report=hang)
    connected_at: Future[tuple[str, int]] = Future()
    connected_at.set_result(("127.0.0.1", 1))
    with under_way(hang, functools.partial(_ended, setup.join, run.job, connected_at)):
        assert run.job.watchdog.told == ("the comparison of all hosts' settings", False, 300.0)
    assert run.job.watchdog.now is None


def test_initializing_chips_has_a_timeout(tmp_path: Path, hang: Hang) -> None:
    run = run_of(tmp_path)
    with under_way(hang, lambda: setup._start_chips(run.job, hang)):
        assert run.job.watchdog.told == ("the initialization of the chips", False, 900.0)
    assert run.job.watchdog.now is None
    (seconds,) = run.job.measurements.seconds("chips")
    assert seconds > 0, "the next attempt's limit follows from it"


def test_the_chip_benchmark_is_own_work(tmp_path: Path, hang: Hang) -> None:
    run = run_of(tmp_path)

    def make() -> Any:
        assert run.job.watchdog.told == ("the compilation of its chip benchmark", True, 7200.0)
        return hang

    pace = StragglerCheck(run.job, make)
    run.job.peers = SimpleNamespace(report=lambda key, value: None)
    with under_way(hang, lambda: _compared(pace)):
        assert run.job.watchdog.told == ("its chip benchmark after step 10", True, 0.0)


@pytest.mark.parametrize("mine", [True, False])
def test_the_wait_for_a_compilation_has_its_own_timeout(mine: bool, tmp_path: Path, hang: Hang) -> None:
    def compiler(name: str, *_: Any) -> Any:
        return hang(), False

    compiler.busy = mine  # type: ignore[attr-defined]
    compiler.loaded = set()  # type: ignore[attr-defined]
    run = run_of(tmp_path, "observe.compile_hang_seconds=50", compiler=compiler)
    with under_way(hang, lambda: resume.get_compiled(run, "train", None)):
        assert run.job.watchdog.told == ("the compilation of the program 'train'", mine, 50.0)
    assert run.job.watchdog.now is None


def test_waiting_for_process_0_to_compile_is_not_own_work(tmp_path: Path, hang: Hang) -> None:
    first, second = connected(2)[0]
    compiler, lowered = Compiler(_shared_cache(tmp_path), second), threading.Event()
    compiler._is_emulated = False  # there every host compiles for itself

    def lower(*_: Any) -> Any:
        lowered.set()
        return SimpleNamespace(compile=hang)

    program = SimpleNamespace(lower=lower)
    thread = threading.Thread(target=compiler, args=("train", program), daemon=True)
    thread.start()
    assert lowered.wait(SECONDS)
    until(lambda: not compiler.busy, every=0.01)
    assert thread.is_alive() and not hang.begun.is_set()
    first.announce("compiled/train", None)
    assert hang.begun.wait(SECONDS)
    assert compiler.busy
    hang.over.set()
    thread.join(SECONDS)
    assert not compiler.busy


def _shared_cache(folder: Path) -> CompileCache:
    (folder / "own").mkdir()
    return CompileCache(folder / "own", SignedFiles(open_place(folder / "shared"), b"a" * 32))


def test_without_a_shared_cache_hosts_compile_independently(tmp_path: Path) -> None:
    _, second = connected(2)[0]
    compiler = Compiler(CompileCache(tmp_path, None), second)
    compiler._is_emulated = False
    program = SimpleNamespace(lower=lambda: SimpleNamespace(compile=lambda: "compiled"))
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(compiler("train", program)), daemon=True)
    thread.start()
    thread.join(10)
    assert made == [("compiled", False)]


def test_a_program_that_is_being_written_is_not_shared_by_another_thread(tmp_path: Path, hang: Hang) -> None:
    (first,), cache = connected(1)[0], _shared_cache(tmp_path)
    compiler, file = Compiler(cache, first), cache.folder / "jit_train-12ab-cache"
    compiler._is_emulated = False

    def compile_slowly() -> None:
        file.write_bytes(b"pro")
        hang()
        file.write_bytes(b"program")

    def begin(name: str, action: Callable[[], None]) -> threading.Thread:
        program = SimpleNamespace(lower=lambda: SimpleNamespace(compile=action))
        thread = threading.Thread(target=compiler, args=(name, program), daemon=True)
        thread.start()
        return thread

    train = begin("train", compile_slowly)
    assert hang.begun.wait(SECONDS)
    finite = begin("finite", lambda: None)
    finite.join(0.5)
    hang.over.set()
    for thread in (train, finite):
        thread.join(SECONDS)
    assert SignedFiles(open_place(tmp_path / "shared"), b"a" * 32).read(file.name) == b"program"


def test_data_is_prepared_by_process_0_and_copied_by_each_host(tmp_path: Path, hang: Hang) -> None:
    for first in (True, False):
        run = run_of(tmp_path, "observe.data_hang_seconds=800")
        hang.begun.clear()
        hang.over.clear()
        run.job.is_first = first
        run.job.peers = SimpleNamespace(await_=lambda key: hang(), barrier=hang)
        with under_way(hang, functools.partial(_ended, setup._corpus, run.job, 8, lambda job: hang())):
            assert run.job.watchdog.told == ("the preparation of the data set", first, 800.0)
    reader = SimpleNamespace(fetch=hang)
    order = SimpleNamespace(ranges_of=lambda shard: [range(3)], records=3)
    for shards, told in (
        ({0}, ("its copy of the data", True, 800.0)),
        (set(), ("all hosts to have their data", False, 800.0)),
    ):
        hang.begun.clear()
        hang.over.clear()
        with under_way(
            hang, functools.partial(_ended, setup._reader, run.job, None, (4,), order, shards, 8, lambda *_: reader)
        ):
            assert run.job.watchdog.told == told
        assert run.job.watchdog.now is None


def _ended(action: Callable[..., Any], *arguments: Any) -> None:
    with contextlib.suppress(TypeError, AttributeError):  # a call that never ends returns nothing
        action(*arguments)


@pytest.mark.parametrize("ends", [True, False])
def test_a_nonfinite_step_waits_for_running_saves_with_a_timeout(
    ends: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waited: list[float] = []

    def ended(seconds: float) -> bool:
        waited.append(seconds)
        return ends

    def finish(pending: Any) -> Any:
        raise FatalError(Problem("the loss of step 3 is nan", ""))

    tiers = {"checkpoints": SimpleNamespace(join=ended), "local": SimpleNamespace(join=ended)}
    run = run_of(tmp_path, progress=SimpleNamespace(finish=finish), **tiers)
    with pytest.raises(FatalError, match="step 3 is nan"):
        train._await_step(run, Pending(3, None, 0.0, None))  # type: ignore[arg-type]
    assert run.job.watchdog.now is None, "it waits for a save, which has its own timeout"
    assert waited == [pytest.approx(900.0, abs=60)] * 2
    assert ("timed out waiting for the save" in capsys.readouterr().out) is not ends


def test_a_save_waits_for_its_compilation_with_a_timeout(tmp_path: Path, hang: Hang) -> None:
    state = jax.device_put(STATE, NamedSharding(MESH, P()))  # type: ignore[no-untyped-call]
    finite = Finite(MESH, state)
    made = lambda name, program, state: (hang() or (lambda state: "looked"), False)  # noqa: E731
    run = run_of(tmp_path, finite=finite, compiler=made)
    run.compiler.busy = True
    outcome: list[Any] = []
    with under_way(hang, lambda: outcome.append(_checked(run, 5, state))):
        until(lambda: len(run.job.watchdog.all) >= 2, every=0.01)
        assert run.job.watchdog.told == ("the compilation of the program 'finite'", True, 7200.0)
    assert outcome == ["looked"]
    assert _checked(run, 6, state) == "looked"
    assert run.job.watchdog.all.count("the compilation of the program 'finite'") == 1


def _checked(run: Any, step: int, state: Any) -> Any:
    with run.job.watchdog.waiting(f"step {step}", step):
        result = saves.check_finite(run, step, state)
        assert run.job.watchdog.told == (f"step {step}", False, 0.0), "the wait for the step continues"
    return result


def _compared(pace: StragglerCheck) -> None:
    with contextlib.suppress(TypeError):  # a call that never ends returns no seconds
        pace.compare(10)


def test_the_replica_check_has_a_timeout(tmp_path: Path, hang: Hang) -> None:
    run = run_of(tmp_path, replicas=SimpleNamespace(require=hang))
    with under_way(hang, lambda: saves.check_state(run, 10, STATE, checked=Action.SAVE)):
        assert run.job.watchdog.told == ("the check of the state after step 10", False, 0.0)


def test_a_state_saved_at_a_stop_is_checked(tmp_path: Path) -> None:
    looked: list[Any] = []
    finite = SimpleNamespace(begin=lambda state: state, compile=lambda compiler: None, is_ready=True)
    progress = SimpleNamespace(require=lambda *a: looked.append(a))
    run = run_of(tmp_path, finite=finite, progress=progress, compiler=None)
    for saved in (Action.NONE, Action.SAVE, Action.SAVE_LOCALLY):
        saves.check_state(run, 10, STATE, checked=Action.CHECK_REPLICAS | saved)
    assert looked == [(10, STATE)], "the others were checked when their step began"


def test_profiles_have_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path, "observe.profile_start=3", "observe.profile_steps=2")
    watchdog, seen = run.job.watchdog, []
    running = Pending(2, None, 0.0, SimpleNamespace(result=lambda: seen.append(watchdog.told)))  # type: ignore[arg-type]
    for name in ("start_trace", "stop_trace"):
        monkeypatch.setattr(jax.profiler, name, lambda *_: seen.append(watchdog.told))
    profiler = Profiler(run.job)
    profiler.start_or_end(3, running)
    profiler.close()
    assert seen == [
        ("step 2", False, 0.0),
        ("the start of its profile", True, 900.0),
        ("the end of its profile", True, 900.0),
    ]
