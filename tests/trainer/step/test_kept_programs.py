"""Programs of emulated chips: compiled by one host, loaded by the others and by the next attempt."""

# mypy: disallow-untyped-calls=False

import threading
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from tests.trainer.emulated import Trainer
from tests.trainer.hosts.connections import SECONDS, connected
from tests.trainer.small import Cluster, start
from trainer.step.collective_order import find_unordered
from trainer.step.compile_cache import CompileCache
from trainer.step.compiler import Compiler
from trainer.step.program_cache import cpu_traits

SETTINGS = ("run.steps=9", "run.eval_every=3", "checkpoint.every=3", "data.max_bytes=50000")


def started(folder: Path, attempt: int, *settings: str) -> Cluster:
    return start(folder, [*SETTINGS, *settings], attempt=attempt, chips=4)


def loaded(job: Cluster, slice_id: int) -> dict[str, bool]:
    """Return the programs of a slice's host, and whether it loaded them."""
    return {event["program"]: event["cached"] for event in job.events(slice_id) if event["event"] == "compile"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_restart_loads_programs_compiled_by_one_host(tmp_path: Path) -> None:
    longer = ("run.steps=100", "run.eval_every=50", "checkpoint.every=50")  # so that it is ended after the only save
    first = started(tmp_path, 0, *longer)
    first.wait_for_save(400)
    first.wait_for_step(53, 400)
    first.kill()
    assert set(loaded(first, 0).values()) == {False} and set(loaded(first, 1).values()) == {True}
    second = started(tmp_path, 1, *longer)
    assert second.exit_codes(400) == [0, 0], second.logs()
    before, after = first.losses(), second.losses()
    again = before.keys() & after.keys()
    assert again and {step: before[step] for step in again} == {step: after[step] for step in again}
    news = {"spread"}  # needed only by restarts, so it has not been compiled before
    for host in (0, 1):
        result = loaded(second, host)
        assert result.keys() >= {"spread", "train", "evaluate"}
        assert all(result[program] for program in result.keys() - (news if host == 0 else set()))


def test_no_host_runs_a_program_that_another_one_still_compiles(tmp_path: Path) -> None:
    """Gloo ends a run in which a host comes 30 seconds later than another."""
    compilers = [Compiler(CompileCache(tmp_path, None), peers) for peers in connected(2)[0]]
    compiled_first, may_compile, runs = threading.Event(), threading.Event(), threading.Event()

    def compile_program(options: object) -> None:
        if threading.current_thread() is first:
            compiled_first.set()
        else:
            assert may_compile.wait(SECONDS)

    def run() -> None:
        compilers[0]("train", program)
        runs.set()

    program = SimpleNamespace(lower=lambda: SimpleNamespace(compile=compile_program))
    first = threading.Thread(target=run, daemon=True)
    second = threading.Thread(target=compilers[1], args=("train", program), daemon=True)
    for thread in (first, second):
        thread.start()
    assert compiled_first.wait(SECONDS) and not runs.wait(0.3)
    may_compile.set()
    assert runs.wait(SECONDS)
    second.join(SECONDS)


def compiled(*, dependent: bool) -> str:
    """Return the HLO of a loop with a sum over chips inside and another such sum after it, or independent of it."""

    def work(x_B: jax.Array) -> tuple[jax.Array, jax.Array]:
        def body(y_B: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jax.lax.psum(jax.numpy.tanh(y_B), "x"), None

        y_B, _ = jax.lax.scan(body, x_B, None, length=5)
        return y_B, jax.lax.psum(jax.numpy.cos(y_B if dependent else x_B), "x")

    mesh = Mesh(np.array(jax.devices()), ("x",))
    program = jax.jit(jax.shard_map(work, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
    return str(program.lower(jax.ShapeDtypeStruct((64,), np.float32)).compile().as_text())


def test_a_loop_and_a_collective_are_ordered_only_by_data() -> None:
    assert find_unordered(compiled(dependent=True)) == []
    ((one, other),) = find_unordered(compiled(dependent=False))
    assert any(name.startswith("while") for name in (one, other))


def test_a_value_forwarded_by_a_loop_does_not_depend_on_it() -> None:
    hlo = """
%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

%body (state: (s32[], f32[8], f32[8])) -> (s32[], f32[8], f32[8]) {
  %state = (s32[], f32[8], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = f32[8] get-tuple-element(%state), index=1
  %y = f32[8] get-tuple-element(%state), index=2
  %inner = f32[8] all-reduce(%x), channel_id=1, to_apply=%sum
  ROOT %next = (s32[], f32[8], f32[8]) tuple(%i, %inner, %y)
}

%condition (state: (s32[], f32[8], f32[8])) -> pred[] {
  %state = (s32[], f32[8], f32[8]) parameter(0)
  ROOT %less = pred[] constant(true)
}

ENTRY %main (x: f32[8], y: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  %y = f32[8] parameter(1)
  %zero = s32[] constant(0)
  %begin = (s32[], f32[8], f32[8]) tuple(%zero, %x, %y)
  %loop = (s32[], f32[8], f32[8]) while(%begin), condition=%condition, body=%body
  %passed = f32[8] get-tuple-element(%loop), index=PLACE
  ROOT %outer = f32[8] all-reduce(%passed), channel_id=2, to_apply=%sum
}
"""
    assert find_unordered(hlo.replace("PLACE", "1")) == []
    assert find_unordered(hlo.replace("PLACE", "2")) == [("loop", "outer")]


@pytest.mark.slow
def test_the_training_step_is_ordered() -> None:
    assert find_unordered(Trainer(2, 4, 1).train().as_text()) == []


def test_machines_with_different_cpus_have_separate_programs(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("processor: 0\nmodel name: A\nflags: sse avx\ncpu MHz: 1000.1\n\nprocessor: 1\n")
    other.write_text("processor: 0\nmodel name: A\nflags: sse\ncpu MHz: 1000.1\n\nprocessor: 1\n")
    assert cpu_traits(one) != cpu_traits(other)
    other.write_text(one.read_text().replace("1000.1", "2000.2"))
    assert cpu_traits(one) == cpu_traits(other)


def test_unparsable_hlo_is_rejected() -> None:
    for hlo in ("", "%main (x: f32[8]) -> f32[8] {\n  %x = f32[8] all-reduce of everything\n}\n"):
        with pytest.raises(ValueError):
            find_unordered(hlo)
