"""The local tier: every host keeps its own part, commits are collective, and lost parts are restored from replicas."""

import json
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.checkpoint.tiers import a_job, tier
from tests.trainer.emulated import Trainer, on
from tests.trainer.hosts.connections import connected, together
from tests.trainer.small import arguments, run_alone, start
from trainer import setup
from trainer.checkpoint import local as local_tier
from trainer.checkpoint import shards
from trainer.checkpoint.broadcast import broadcast, local_shards
from trainer.checkpoint.local import CandidateCheckpoint, LocalCheckpoint, LocalTier
from trainer.checkpoint.stores import manifest, open_store
from trainer.hosts.peers import Peers
from trainer.step.compile_cache import CompileCache
from trainer.step.compiler import Compiler
from trainer.storage import open_place
from xpk_shared.storage import Place


def chosen(made: LocalTier, trainer: Trainer) -> LocalCheckpoint | None:
    return made.choose(trainer.mesh, trainer.programs.state)


def keep(made: LocalTier, step: int, state: Any) -> None:
    made.save(step, state, tokens=step)
    made.wait()


def steps(made: LocalTier) -> list[str]:
    return sorted(path.name for path in made.place.iterdir())


def events(folder: Path, name: str, host: int = 0) -> list[dict[str, Any]]:
    lines = (folder / f"events-{host}").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def same(one: Any, other: Any) -> None:
    """Assert that two states have equal shardings and are bit-equal."""
    for old, new in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert new.sharding.is_equivalent_to(old.sharding, old.ndim)
        for a, b in zip(old.addressable_shards, new.addressable_shards, strict=True):
            assert np.asarray(a.data).tobytes() == np.asarray(b.data).tobytes()


def test_the_newest_local_checkpoint_is_kept_and_restored_bit_exactly(
    tmp_path: Path, trainer: Trainer, state: Any
) -> None:
    first = tier(tmp_path)
    assert chosen(first, trainer) is None
    for step in (1, 2, 3):
        keep(first, step, state)
    assert steps(first) == ["3"]
    saved = events(tmp_path, "local_save")[-1]
    assert saved["step"] == 3 and 0 <= saved["blocked"] <= saved["seconds"]
    second = tier(tmp_path)
    result = chosen(second, trainer)
    assert result is not None and (result.step, result.notes, result.sources) == (3, {"note": 1, "tokens": 3}, [])
    compiler = Compiler(
        CompileCache(tmp_path, None), Peers(0, 1, on_lost=lambda peer: None, on_message=lambda what, by: None)
    )
    restored, own = second.restore(result, trainer.mesh, trainer.programs.state, compiler)()
    assert own
    same(state, restored)
    second.clear()
    assert not second.place.exists()


@pytest.mark.parametrize("harm", ["flip", "truncate", "missing", "manifest"])
def test_a_damaged_local_checkpoint_is_named_and_counts_as_lost(
    harm: str, tmp_path: Path, trainer: Trainer, state: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    first = tier(tmp_path)
    chosen(first, trainer)
    keep(first, 1, state)
    (victim,) = first.place.glob("1/params.embed*")
    content = bytearray(victim.read_bytes())
    if harm == "flip":
        content[len(content) // 2] ^= 1
        victim.write_bytes(content)
    elif harm == "truncate":
        victim.write_bytes(content[:-1])
    elif harm == "missing":
        victim.unlink()
    else:
        (first.place / "1" / "manifest.json").write_text('{"files": {"a"')
    assert chosen(tier(tmp_path), trainer) is None
    (skipped,) = events(tmp_path, "local_skipped")
    assert skipped["step"] == 1
    assert ("manifest.json" if harm == "manifest" else "params.embed") in skipped["reason"]
    assert f"{first.place / '1'} is damaged and ignored: {skipped['reason']}" in capsys.readouterr().out


def test_interrupted_saves_and_those_of_other_runs_are_removed(tmp_path: Path, trainer: Trainer, state: Any) -> None:
    first = tier(tmp_path)
    chosen(first, trainer)
    keep(first, 1, state)
    (first.place / ".saving-2").mkdir()
    assert chosen(tier(tmp_path), trainer) is not None
    assert steps(first) == ["1"]
    shutil.rmtree(tmp_path / "out")  # the user starts a new run at the same address
    assert chosen(tier(tmp_path), trainer) is None
    assert steps(first) == []


def test_a_run_with_only_local_checkpoints_keeps_its_data_set(tmp_path: Path, trainer: Trainer, state: Any) -> None:
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("hello")
    data = f"data.path={text}"
    before = setup._prepare_corpus(a_job(tmp_path, data))
    (text / "b.txt").write_text("more")
    fixed = setup._prepare_corpus(a_job(tmp_path, data))
    assert (before.tokens, fixed.tokens) == (6, 11), "as long as no run has started"
    made = tier(tmp_path)
    chosen(made, trainer)
    keep(made, 5, state)
    (text / "c.txt").write_text("and more")
    assert setup._prepare_corpus(a_job(tmp_path, data)) == fixed
    assert setup._prepare_corpus(a_job(tmp_path, data, "checkpoint.local_every=0")).tokens == 20, "the run starts again"


def test_local_checkpoints_of_another_mesh_are_not_used(tmp_path: Path, trainer: Trainer, state: Any) -> None:
    first = tier(tmp_path)
    chosen(first, trainer)
    keep(first, 1, state)
    other = on(1, 2, 1)
    assert tier(tmp_path).choose(other.mesh, other.programs.state) is None
    assert [event["reason"] for event in events(tmp_path, "local_skipped")] == ["different mesh or model"]


def test_resuming_from_an_earlier_step_removes_later_checkpoints(tmp_path: Path, trainer: Trainer, state: Any) -> None:
    first = tier(tmp_path)
    chosen(first, trainer)
    keep(first, 6, state)
    second = tier(tmp_path)
    assert chosen(second, trainer) is not None
    second.settle(4)
    assert steps(second) == []


def hosts(folder: Path, count: int) -> list[LocalTier]:
    return [tier(folder, peers) for peers in connected(count)[0]]


def all_do(made: list[LocalTier], act: Callable[[LocalTier], object]) -> list[object]:
    return together([lambda item=item: act(item) for item in made])  # type: ignore[misc]


def test_a_host_that_cannot_write_prevents_the_commit(
    tmp_path: Path, trainer: Trainer, state: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    both = hosts(tmp_path, 2)
    all_do(both, lambda item: chosen(item, trainer))
    all_do(both, lambda item: keep(item, 1, state))
    assert [steps(item) for item in both] == [["1"], ["1"]]
    shutil.rmtree(both[1].place)
    both[1].place.write_text("in the way")
    all_do(both, lambda item: keep(item, 2, state))
    assert steps(both[0]) == ["1"]
    for host in (0, 1):
        (failed,) = events(tmp_path, "local_save_failed", host)
        assert (failed["step"], failed["reason"]) == (2, "slice 1 host 0: Not a directory")
    warning = f"warning: local checkpoint of step 2 not saved in {both[0].place}: slice 1 host 0: Not a directory"
    assert capsys.readouterr().out.count(warning) == 1
    both[1].place.unlink()
    all_do(both, lambda item: keep(item, 3, state))
    assert [steps(item) for item in both] == [["3"], ["3"]]


def test_a_checkpoint_is_kept_if_a_host_died_before_the_commit(tmp_path: Path, trainer: Trainer, state: Any) -> None:
    both = hosts(tmp_path, 2)
    all_do(both, lambda item: chosen(item, trainer))
    all_do(both, lambda item: keep(item, 1, state))
    (both[1].place / "1").rename(both[1].place / ".written-1")
    again = hosts(tmp_path, 2)
    assert [result and result.step for result in all_do(again, lambda item: chosen(item, trainer))] == [1, 1]  # type: ignore[attr-defined]
    shutil.rmtree(both[0].place / "1")  # now no host knows that both had written it
    again = hosts(tmp_path, 2)
    assert all_do(again, lambda item: chosen(item, trainer)) == [None, None]


def test_hosts_that_exchange_their_nodes_use_each_others_stores(tmp_path: Path, trainer: Trainer, state: Any) -> None:
    both = [tier(tmp_path, peers, local=f"node-{n}") for n, peers in enumerate(connected(2)[0])]
    all_do(both, lambda item: chosen(item, trainer))
    all_do(both, lambda item: keep(item, 1, state))
    moved = [tier(tmp_path, peers, local=f"node-{1 - n}") for n, peers in enumerate(connected(2)[0])]
    assert [result and result.step for result in all_do(moved, lambda item: chosen(item, trainer))] == [1, 1]  # type: ignore[attr-defined]
    all_do(moved, lambda item: keep(item, 2, state))
    assert [path.name for path in tmp_path.glob("node-*/*/*/*")] == ["2", "2"], "the former ones are removed"
    all_do(moved, lambda item: item.clear())
    assert not [*tmp_path.glob("node-*/*/*")]


def other_part(own: Path, folder: Path, state: Any) -> None:
    """Write a checkpoint of the same save as `own`, with what another host's chips hold: a piece of each array less."""
    pieces = shards.copy_pieces(state)
    for part in pieces.values():
        part.contents.popitem()
    shards.write(folder, pieces, manifest.notes((own / "manifest.json").read_bytes()))


def test_the_part_of_a_host_that_is_gone_does_not_hide_the_own_one(
    tmp_path: Path, trainer: Trainer, state: Any
) -> None:
    """It is on the same node, and so in this host's hands."""
    first = tier(tmp_path)
    chosen(first, trainer)
    keep(first, 1, state)
    foreign = first.place.with_name("s0-h1")
    other_part(first.place / "1", foreign / "1", state)
    second = tier(tmp_path)
    result = chosen(second, trainer)
    assert result is not None and (result.step, result.sources) == (1, [])
    peers = Peers(0, 1, on_lost=lambda peer: None, on_message=lambda what, by: None)
    compiler = Compiler(CompileCache(tmp_path, None), peers)
    restored, own = second.restore(result, trainer.mesh, trainer.programs.state, compiler)()
    assert own
    same(state, restored)
    second.settle(0)
    assert steps(second) == [] and not [*foreign.iterdir()], "those that do not fit are removed, too"


def test_a_copy_that_no_host_has_confirmed_does_not_hide_a_confirmed_one(
    tmp_path: Path, trainer: Trainer, state: Any
) -> None:
    both = [tier(tmp_path, peers, local=f"node-{n}") for n, peers in enumerate(connected(2)[0])]
    all_do(both, lambda item: chosen(item, trainer))
    all_do(both, lambda item: keep(item, 1, state))
    shutil.copytree(both[0].place / "1", both[0].place.with_name("s0-h1") / ".written-1")
    shutil.rmtree(both[1].place)
    again = [tier(tmp_path, peers, local=f"node-{n}") for n, peers in enumerate(connected(2)[0])]
    assert [result and result.step for result in all_do(again, lambda item: chosen(item, trainer))] == [1, 1]  # type: ignore[attr-defined]


def test_the_end_of_a_run_waits_for_its_last_save_before_it_removes_all(
    tmp_path: Path, trainer: Trainer, state: Any
) -> None:
    may_write = threading.Event()

    def write(*arguments: Any) -> None:
        may_write.wait(60)
        shards.write(*arguments)

    made = tier(tmp_path, write=write)
    chosen(made, trainer)
    made.save(1, state)
    threading.Timer(0.2, may_write.set).start()
    made.clear()
    made.wait()
    assert not made.place.exists()


def test_an_unreadable_local_checkpoint_counts_as_lost(tmp_path: Path, trainer: Trainer, state: Any) -> None:
    first = tier(tmp_path)
    chosen(first, trainer)
    keep(first, 1, state)
    file, record = first.place / "1" / "w", first.place / "1" / "manifest.json"
    file.symlink_to("/proc/self/mem")  # its first byte cannot be read
    record.write_bytes(manifest.manifest({"w": (0, "md5:AAAA")}, manifest.notes(record.read_bytes())))
    assert chosen(tier(tmp_path), trainer) is None
    (skipped,) = events(tmp_path, "local_skipped")
    assert skipped["reason"] == f"{first.place / '1'} cannot be read: Input/output error"


def offer(step: int, session: str = "a", committed: bool = True) -> CandidateCheckpoint:
    return CandidateCheckpoint(step, session, committed, {})


TWO_BY_TWO = [[0, 0, 1, 1], [2, 2, 3, 3]]  # two replicas of two hosts with two chips each


@pytest.mark.parametrize(
    ("offers", "help_", "step", "sources"),
    [
        ([[offer(4)], [offer(4)], [offer(4)], [offer(4)]], True, 4, []),
        ([[], [], [offer(4)], [offer(4)]], True, 4, [1, 1, 1, 1]),  # a slice was lost, with process 0
        ([[], [offer(4)], [offer(4)], []], True, 4, [1, 1, 0, 0]),  # one host of each
        ([[offer(4)], [], [offer(4)], []], True, None, []),  # no host has the second half
        ([[offer(4)], [offer(4)], [offer(4)], []], False, None, []),  # with parts that replicas do not share
        ([[offer(4, committed=False)], [offer(4, committed=False)], [], []], True, None, []),  # not all had written it
        ([[offer(4, committed=False)]] * 4, True, 4, []),  # all have it, though none knew that
        ([[offer(4), offer(6)], [offer(4)], [offer(4)], [offer(4), offer(6)]], True, 6, [0, 0, 1, 1]),
        ([[offer(4), offer(6)], [offer(4)], [offer(4)], [offer(4)]], True, 4, []),
        ([[offer(4, "a")], [offer(4, "b")], [offer(4, "a")], [offer(4, "b")]], True, None, []),  # never mixed
    ],
)
def test_the_newest_step_that_is_complete_over_all_hosts_is_chosen(
    offers: list[list[CandidateCheckpoint]], help_: bool, step: int | None, sources: list[int]
) -> None:
    saved, _ = local_tier.newest_common_checkpoint(offers, TWO_BY_TWO, can_share=help_)
    assert (saved and saved.step) == step
    if saved:
        assert saved.sources == sources


@given(
    st.lists(st.integers(0, 3), max_size=12),
    st.sets(st.integers(0, 3), max_size=3),
)
def test_a_step_counts_only_if_all_hosts_had_written_it(beats: list[int], lost: set[int]) -> None:
    """Hosts save three steps one after the other; `beats` says how far each gets before the job is killed."""
    done, written = [0] * 4, [0] * 4  # the last step that a host knows to be complete, and the last that it has written
    for host in beats:
        if done[host] < written[host]:
            if min(written) >= written[host]:
                done[host] = written[host]  # process 0 announces only then; the previous one is removed only now
        elif written[host] < 3:
            written[host] += 1
    on_disk = [
        [offer(n, committed=n <= done[host]) for n in {max(done[host], 1), written[host]} if 1 <= n <= written[host]]
        if host not in lost
        else []
        for host in range(4)
    ]
    saved, _ = local_tier.newest_common_checkpoint(on_disk, TWO_BY_TWO, can_share=True)
    if saved:
        assert saved.step <= min(written)
        givers = {TWO_BY_TWO[replica][place] for place, replica in enumerate(saved.sources)}
        assert not givers & lost
    if not lost and max(done):
        assert saved is not None and saved.step >= max(done)


def test_stores_on_exchanged_nodes_are_found() -> None:
    names = ["s0-h0", "s1-h0"]
    stay = [{"s0-h0": "x/1"}, {"s1-h0": "y/1"}]
    swapped = [{"s1-h0": "y/1"}, {"s0-h0": "x/1"}]
    one_disk = [{"s0-h0": "x/1", "s1-h0": "x/2"}, {"s0-h0": "x/1", "s1-h0": "x/2"}]
    lost = [{"s0-h0": "x/1"}, {"s0-h0": "x/1"}]  # on one disk: no host uses another's store
    assert local_tier.assign_stores(names, stay) == [["s0-h0"], ["s1-h0"]]
    assert local_tier.assign_stores(names, swapped) == [["s1-h0"], ["s0-h0"]]
    assert local_tier.assign_stores(names, one_disk) == [["s0-h0"], ["s1-h0"]]
    assert local_tier.assign_stores(names, lost) == [["s0-h0"], []]


def test_hosts_on_one_node_use_the_store_of_their_own_index() -> None:
    names = ["s0-h0", "s0-h1", "s1-h0", "s1-h1"]
    of_slice_0 = {"s0-h0": "x/1", "s0-h1": "x/2"}
    # Slice 1 is on the nodes of slice 0, and slice 0 on a node without stores.
    assert local_tier.assign_stores(names, [{}, {}, of_slice_0, of_slice_0]) == [[], [], ["s0-h0"], ["s0-h1"]]
    # Another slice was there before, which no longer exists.
    of_slice_2 = {"s2-h0": "x/1", "s2-h1": "x/2"}
    assert local_tier.assign_stores(names, [of_slice_2, of_slice_2, {}, {}]) == [["s2-h0"], ["s2-h1"], [], []]


@pytest.mark.slow
def test_lost_parts_are_restored_from_other_replicas(trainer: Trainer, state: Any, tmp_path: Path) -> None:
    """Half of each replica is poisoned; only the other halves may be read."""
    mesh, abstract = trainer.mesh, trainer.programs.state
    sources = [0, 1, 1, 0]
    givers = {mesh.devices[replica].flat[place] for place, replica in enumerate(sources)}
    compiler = Compiler(
        CompileCache(tmp_path, None), Peers(0, 1, on_lost=lambda peer: None, on_message=lambda what, by: None)
    )
    poisoned = [
        {device: jax.device_put(data + (device not in givers), device) for device, data in have.items()}
        for have in local_shards(state, abstract)
    ]
    same(state, broadcast(poisoned, givers, mesh, abstract, compiler))


def test_a_local_tier_without_a_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    for settings in (["checkpoint.local_every=1"], ["checkpoint.local_every=1", "checkpoint.local_path=gs://b/x"]):
        size = ("--num-slices", "1", "--hosts-per-slice", "1", "--chips-per-host", "2", "--no-data")
        ran = run_alone("check", *size, *arguments(settings))
        (problem,) = json.loads(ran.stdout)["problems"]
        assert ran.returncode == 42 and "is not a folder on the hosts" in problem["message"]


@pytest.mark.slow
@pytest.mark.extended
def test_a_shortened_run_saves_its_local_steps_before_it_ends(tmp_path: Path) -> None:
    settings = ["checkpoint.every=100000", "run.eval_every=0", "data.max_bytes=50000"]
    settings += ["checkpoint.local_every=2", f"checkpoint.local_path={tmp_path / 'ram'}"]
    out = tmp_path / "out"
    first = start(out, [*settings, "run.steps=100000"])
    first.wait_for_step(7)
    first.kill()
    for attempt in (1, 2):  # the second call has nothing to do
        job = start(out, [*settings, "run.steps=3"], attempt=attempt)
        assert job.exit_codes() == [0, 0], job.logs()
        assert f"done: {_newest(out)} steps" in job.logs()
        assert not list((tmp_path / "ram").glob("*/*/*"))
        restored = next(event for event in job.events(0) if event["event"] == "restore")
        assert (restored["source"], restored["step"]) == ("local" if attempt == 1 else "checkpoint", _newest(out))
    saved = open_store(open_place(out / "checkpoints"))
    assert saved.damage(_newest(out)) == "" and saved.notes(_newest(out))["tokens"] == _newest(out) * 8 * 16


def _newest(out: Path) -> int:
    return max(open_store(open_place(out / "checkpoints")).steps())


@pytest.mark.slow
def test_a_slice_that_lost_its_local_tier_restores_from_the_other_slice(tmp_path: Path) -> None:
    settings = ["run.steps=60", "checkpoint.every=100000", "run.eval_every=0", "data.max_bytes=50000"]
    whole = start(tmp_path / "whole", settings)
    assert whole.exit_codes() == [0, 0], whole.logs()
    settings += ["checkpoint.local_every=2", f"checkpoint.local_path={tmp_path / 'ram'}"]
    losses: dict[int, str] = {}
    saved, lost = "local checkpoint", "peer"
    for attempt, (reached, origins) in enumerate([(20, ()), (40, (saved, lost)), (60, (lost, saved))]):
        job = start(tmp_path / "out", settings, attempt=attempt)
        job.wait_for_step(reached)
        if reached < 60:
            job.processes[1].send_signal(signal.SIGKILL)
        job.exit_codes()
        losses |= job.losses()
        restored = [next(e for e in job.events(n) if e["event"] == "restore") for n in (0, 1)]
        assert [event["source"] for event in restored] == ["local" if attempt else "init"] * 2, job.logs()
        for n, origin in enumerate(origins):
            line = f"slice {n} host 0: attempt {attempt} resuming from step {restored[n]['step']} ({origin})"
            assert line in job.logs()
        if attempt == 0:  # a new node replaced that of slice 1
            (store,) = (tmp_path / "ram").glob("*/s1-h0")
            shutil.rmtree(store)
        elif attempt == 1:  # a bit in slice 0's memory is flipped
            for path in (tmp_path / "ram").glob("*/s0-h0/*/params.embed"):
                path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
        else:
            assert "params.embed has changed since it was written" in job.logs()
    assert losses == whole.losses()
    assert [path.name for path in (tmp_path / "out" / "checkpoints").glob("[0-9]*")] == ["60"]


class Contested:
    """An output folder in which another attempt begins as soon as one has looked for the id of the run."""

    def __init__(self, out: Place) -> None:
        self._out, self.other = out, ""

    def __truediv__(self, name: str) -> Any:
        self._file, self._slot = self._out / name, (self._out / name).slot()
        return self

    def is_file(self) -> bool:
        """Return whether there is a file, which older versions wrote."""
        return self._file.is_file()

    def slot(self) -> Any:
        """Return the slot of the file."""
        return self

    def look(self) -> tuple[int, bytes]:
        """Return version and content, and let the other attempt begin."""
        seen = self._slot.look()
        self.other = self.other or local_tier._run_id(self._out)
        return seen

    def put(self, content: bytes, over: int) -> int:
        """Write over a version."""
        return self._slot.put(content, over)


def test_attempts_that_begin_at_the_same_time_agree_on_the_run(tmp_path: Path) -> None:
    """Otherwise the local checkpoints of one of them would later count as those of an earlier run."""
    out = open_place(tmp_path)
    contested: Any = Contested(out)
    own = local_tier._run_id(contested)
    assert own == contested.other == local_tier._run_id(out)
    assert local_tier.has_started(out)
