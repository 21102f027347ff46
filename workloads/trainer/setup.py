"""Set-up of a run: join the hosts, prepare the data, lay out the mesh and build the programs."""

# mypy: disallow-untyped-calls=False

import dataclasses
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import jax
from jax.sharding import Mesh

from trainer.checkpoint import local as local_tier
from trainer.checkpoint import manager
from trainer.checkpoint.finite_check import Finite
from trainer.checkpoint.local import LocalTier
from trainer.checkpoint.manager import Checkpoints
from trainer.checkpoint.replica_check import Replicas
from trainer.checkpoint.shelves import open_shelf
from trainer.config import Config, Model
from trainer.data import batches, dataset, prepare, reader, synthetic_images
from trainer.data.dataset import Corpus
from trainer.data.reader import Reader
from trainer.data.records import Record, record
from trainer.data.sampler import Order
from trainer.errors import FatalError, StorageError, reason
from trainer.estimate import flops
from trainer.former_names import SYNTHETIC
from trainer.hosts import bootstrap, consistency, timeouts
from trainer.hosts.job import Address, Job
from trainer.models import registry
from trainer.observe.chip_benchmark import chip_benchmark
from trainer.observe.profiler import Profiler
from trainer.observe.step_log import Progress
from trainer.observe.stragglers import StragglerCheck
from trainer.parallel import layout
from trainer.parallel.mesh import make_mesh
from trainer.step import programs as step
from trainer.step.compile_cache import CompileCache
from trainer.step.compiler import Compiler
from trainer.step.program_cache import Executables
from trainer.step.programs import Programs
from trainer.storage.scratch import scratch
from trainer.storage.signed import SignedFiles
from trainer.telemetry import metrics
from xpk_shared.storage.errors import Unreachable


@dataclasses.dataclass(frozen=True)
class Run:
    """Constant parts of an attempt, from the first step to the last."""

    job: Job
    records: int  # of the whole data set
    order: Order  # of the training records
    mesh: Mesh
    slots: batches.Slots
    batch: int
    programs: Programs
    compiler: Compiler
    checkpoints: Checkpoints
    local: LocalTier
    progress: Progress
    replicas: Replicas
    finite: Finite
    stragglers: StragglerCheck
    profiler: Profiler
    read: Reader | None  # None on a host that does not load

    @property
    def held_out(self) -> int:
        """Number of records held out for evaluation."""
        return dataset.eval_records(self.job.config, self.records)

    @property
    def example(self) -> Record:
        """Format of the model's examples."""
        return record(self.job.config.model)

    @property
    def step_items(self) -> int:
        """Tokens or images in a step."""
        return self.batch * self.example.items

    def blocks(self, ids_B: Any) -> batches.Blocks:
        """Read this host's part of a batch and put it on its chips."""
        return batches.to_blocks(self.mesh, self.slots, ids_B, self.read, self.example)


def _order(config: Config, counts: tuple[int, ...], batch: int) -> Order:
    """Return the order of records; `counts` are the records of each file of the data set."""
    records, asked = sum(counts), config.data
    trained = records - dataset.eval_records(config, records)
    return Order(asked.seed, batch, trained, asked.shards, asked.shuffle, asked.shuffle_window, counts)


def _join(job: Job, meeting: "Future[Address]") -> consistency.Traits:
    """Join the other hosts if all agree on the traits of the run; return the traits."""
    traits = consistency.traits(job.config, os.environ)
    address = meeting.result()
    consistency.agree(job.peers, job.host, traits)
    if job.host.processes > 1:
        bootstrap.join(job.host, *address, job.peers)
    return traits


def set_up(job: Job, meeting: "Future[Address]") -> Run:
    """Join the other hosts and prepare everything; compiles nothing. Raises FatalError."""
    traits = _join(job, meeting)
    devices = jax.devices()
    job.events.write(
        "init", None, time.monotonic() - job.events.began, processes=job.host.processes, devices=len(devices)
    )
    if job.host.slice_id == 0 and (job.out / "checkpoints").is_folder():
        manager.warm_up()  # this host may restore; the others need Orbax only after their first step
    chips = layout.Chips(job.host.num_slices, job.host.hosts_per_slice, jax.local_device_count())
    problems = layout.check(job.config, chips)
    if problems:
        raise FatalError(*problems)
    sizes = layout.layout(job.config, chips)
    tokens, counts = _corpus(job, sizes.global_batch)
    order = _order(job.config, counts, sizes.global_batch)
    mesh = make_mesh(sizes, devices, job.host.hosts_per_slice)
    slots = batches.make_slots(mesh, sizes.loader_hosts, chips.hosts, sizes.global_batch, shards=order.shards)
    own_slots = [place for place in slots.readers if mesh.devices.flat[place].process_index == jax.process_index()]
    examples = job.config.run.steps * slots.rows * len(own_slots)
    read = _reader(job, tokens, counts, order, batches.shards_of(slots, own_slots, order), examples)
    notes, max_to_keep = _notes(job.config, tokens, order), job.config.checkpoint.max_to_keep
    if job.is_first:
        _introduce(job.config, mesh, sum(counts), sizes.global_batch)
    programs = step.build(job.config, mesh, slots, sizes)
    finite, emulated = Finite(mesh, programs.state), devices[0].platform == "cpu"
    return Run(
        job=job,
        records=sum(counts),
        order=order,
        mesh=mesh,
        slots=slots,
        batch=sizes.global_batch,
        programs=programs,
        compiler=_compiler(job, traits),
        checkpoints=Checkpoints(job.out / "checkpoints", max_to_keep, notes, job.peers, job.events),
        local=LocalTier(job, notes),
        progress=Progress(
            job,
            sizes.global_batch,
            chips.total,
            lambda step: order.ids(step - 1),
            flops.int8_share(job.config),
            finite.names,
            emulated=emulated,
        ),
        finite=finite,
        stragglers=StragglerCheck(job, None if emulated else chip_benchmark),
        profiler=Profiler(job),
        replicas=Replicas(job.config.observe.checksum_every, mesh, programs.state, job.host, job.events),
        read=read,
    )


def _notes(config: Config, tokens: Corpus, order: Order) -> dict[str, Any]:
    """Return the notes that every checkpoint of the run carries."""
    return {
        "model": dataclasses.asdict(config.model),
        "optimizer": config.optim.state_notes(),
        "data": tokens.digest,
        "tokenizer": tokens.tokenizer,
        "seed": config.data.seed,
        "order": f"{config.data.shuffle}, window {config.data.shuffle_window}, shards {config.data.shards}",
        "global_batch": order.batch,
        "trained": order.records,
        "held_out": sum(order.files) - order.records,
    }


def _introduce(config: Config, mesh: Mesh, records: int, batch: int) -> None:
    """Print the model, mesh, batch and data in one line."""
    axes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items() if size > 1 or axis != "stage")
    count, example = registry.parameters(config.model), record(config.model)
    items = f"{records * example.items:,} {example.noun}s"
    metrics.say(f"{config.name}: {count:,} parameters   {axes}   batch {batch}   {items}")


def _compiler(job: Job, traits: consistency.Traits) -> Compiler:
    """Return the compiler of this job, with the programs of earlier attempts if `run.keep_programs`.

    Programs are shared only under a workload secret, which lets hosts recognize their own.
    """
    shared, secret, own = job.out / "compile-cache", job.host.secret, scratch() / "compile-cache"
    if not secret:
        return Compiler(CompileCache(own, None), job.peers)
    cache = CompileCache(own, SignedFiles(shared / "jax", secret))
    keeps_programs, programs = job.config.run.keep_programs, SignedFiles(shared / "programs", secret)
    return Compiler(cache, job.peers, (lambda: Executables(programs, traits)) if keeps_programs else None)


def _corpus(job: Job, batch: int, prepared: Callable[[Job], Corpus] | None = None) -> tuple[Corpus, tuple[int, ...]]:
    """Prepare or find the data set on process 0 and announce it; only hosts that load data open it.

    Returns (data set, records of each of its files).
    """
    began = time.monotonic()
    with timeouts.data(job, "the data set to be made", own=job.is_first):
        if job.is_first:
            corpus = (prepared or _prepared)(job)
            counts = _checked(job, corpus, batch)
            job.peers.announce("corpus", [dataclasses.asdict(corpus), counts])
        notes, counts = job.peers.await_("corpus")
    job.events.write("data", None, time.monotonic() - began, records=sum(counts))
    return dataset.from_notes(notes["path"], notes), tuple(counts)


def _checked(job: Job, corpus: Corpus, batch: int) -> tuple[int, ...]:
    """Check that the data set suffices, and print its defects; return the records of its files."""
    config = job.config
    counts = reader.counts(corpus, config.model)
    dataset.check_corpus(config, corpus, sum(counts), batch)
    if corpus.skipped:
        metrics.say(f"data: {corpus.skipped} binary or unreadable files skipped, {corpus.documents} used")
    if config.model.packed:
        full = corpus.tokens / (sum(counts) * record(config.model).length // 2)
        metrics.say(f"data: {corpus.documents:,} documents fill {full:.0%} of {sum(counts):,} packed examples")
    return counts


def _reader(
    job: Job,
    tokens: Corpus,
    counts: tuple[int, ...],
    order: Order,
    shards: set[int],
    examples: int,
    opened: Callable[[Corpus, Model, tuple[int, ...]], Reader] = Reader,
) -> Reader | None:
    """Open the files of this host's shards and of the held-out records; wait until all hosts have done so.

    Files in a bucket are copied here, as a step that waited for them would look hung. A host that trains on few
    `examples` of a file copies them when it reads them.
    """
    read = opened(tokens, job.config.model, counts) if shards else None
    if read is not None:
        with timeouts.data(job, "its copy of the data", own=True):
            read.fetch([*map(order.range_of, shards), range(order.records, sum(counts))], examples)
    with timeouts.data(job, "all hosts to have their data", own=False):
        job.peers.barrier("data")
    return read


def _prepared(job: Job) -> Corpus:
    """Return the run's data set; prepare it in the output folder if necessary."""
    data, model = job.config.data, job.config.model
    begun, folder = bool(open_shelf(job.out / "checkpoints").steps()), job.out / "data"
    if job.config.checkpoint.local_every:
        begun = begun or local_tier.begun(job.out)
    try:
        if data.path == SYNTHETIC:
            return synthetic_images.prepare(model, folder, data.max_bytes)
        text = (data.path, folder, data.suffixes, data.max_bytes)
        return prepare.prepare(*text, tokenizer=data.tokenizer, pinned=begun)
    except (PermissionError, Unreachable):
        raise
    except OSError as error:
        raise StorageError(f"cannot prepare the data set in {folder}: {reason(error)}") from error
