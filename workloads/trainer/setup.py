"""Set-up of a run: join the hosts, prepare the data, lay out the mesh and build the programs."""

# mypy: disallow-untyped-calls=False

import dataclasses
import functools
import itertools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import jax
from jax.sharding import Mesh

from trainer import detection, translation
from trainer.checkpoint import local as local_tier
from trainer.checkpoint import manager
from trainer.checkpoint.finite_check import Finite
from trainer.checkpoint.intervals import IntervalTuner, Planner
from trainer.checkpoint.local import LocalTier
from trainer.checkpoint.manager import Checkpoints
from trainer.checkpoint.replica_check import Replicas
from trainer.checkpoint.stores import open_store
from trainer.config import Config, Model
from trainer.data import batches, bucket_order, checks, dataset, preparation, reader
from trainer.data.bucket_order import BucketOrder
from trainer.data.dataset import Corpus
from trainer.data.reader import Reader
from trainer.data.records import Kind, Record, record
from trainer.data.sampler import Order
from trainer.errors import FatalError, StorageError, reason
from trainer.estimate import flops
from trainer.hosts import bootstrap, consistency, timeouts
from trainer.hosts.job import Address, Job
from trainer.hosts.measurements import CHIPS, JOIN
from trainer.hosts.run_record import RunRecord
from trainer.models import registry
from trainer.observe.chip_benchmark import chip_benchmark
from trainer.observe.profiler import Profiler
from trainer.observe.step_log import Progress
from trainer.observe.stragglers import StragglerCheck
from trainer.pair_lengths import batch_lengths
from trainer.parallel import layout
from trainer.parallel.mesh import make_mesh
from trainer.schedule import RunSchedule
from trainer.step import programs as step
from trainer.step.compile_cache import CompileCache
from trainer.step.compiler import Compiler
from trainer.step.program_cache import Executables
from trainer.step.programs import Programs
from trainer.storage.scratch import scratch
from trainer.storage.signed import SignedFiles
from trainer.telemetry import metrics
from trainer.telemetry.mllog import MllogFile
from xpk_shared.storage.errors import Unreachable


@dataclasses.dataclass(frozen=True)
class Run:
    """Constant parts of an attempt, from the first step to the last."""

    job: Job
    records: int  # of the whole data set
    order: Order | BucketOrder  # of the training records
    mesh: Mesh
    slots: batches.Slots
    batch: int  # examples of a step, over all slices
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
    record: RunRecord

    @property
    def held_out(self) -> int:
        """Number of records held out for evaluation."""
        return self.records - self.order.records

    @property
    def example(self) -> Record:
        """Format of the model's examples."""
        return record(self.job.config.model)

    @property
    def step_items(self) -> int:
        """Tokens or images in a step."""
        return self.batch * self.example.items

    def tuner(self, schedule: RunSchedule) -> IntervalTuner:
        """Return the tuner of the checkpoint intervals, which `schedule` follows."""
        host = self.job.host
        planner = Planner(
            settings=self.job.config.checkpoint,
            chips=self.mesh.size * host.replicas,
            has_copies=self.mesh.shape["dp"] > 1,
            is_elastic=host.is_elastic,
        )
        return IntervalTuner(self.job, self.record, schedule, planner)

    def blocks(self, ids_B: Any, step: int | None = None) -> batches.Blocks:
        """Read this host's part of the batch after `step` steps, None in an evaluation, and put it on its chips."""
        read = None if self.read is None else functools.partial(self.read, step=step)
        return batches.to_blocks(self.mesh, self.slots, ids_B, read, self.example)


def _order(config: Config, corpus: Corpus, counts: tuple[int, ...], batch: int) -> Order | BucketOrder:
    """Return the order of records; `counts` are the numbers of records in the files of the data set."""
    records, data = sum(counts), config.data
    trained = records - dataset.eval_records(config, corpus, records)
    if record(config.model).kind is Kind.TRANSLATIONS:
        longest = [file.longest for file in corpus.files]
        buckets = bucket_order.buckets(
            longest, counts[: len(longest)], batch_lengths(config.model), max(batch, data.shards)
        )
        return BucketOrder(data.seed, batch, trained, data.shards, data.shuffle, counts, buckets)
    return Order(data.seed, batch, trained, data.shards, data.shuffle, data.shuffle_window, counts)


def join(job: Job, coordinator_future: "Future[Address]") -> tuple[consistency.Traits, RunRecord]:
    """Join the other hosts if all agree on the traits of the run; return these, and the record of earlier attempts."""
    traits = consistency.traits(job.config, os.environ)
    address = coordinator_future.result()
    if not job.host.is_elastic:
        job.stop.arm()
    with job.watchdog.waiting("the comparison of all hosts' settings", 0, min_seconds=timeouts.limits(job).join()):
        consistency.check_agreement(job.peers, job.host, traits)
    record, limit = RunRecord(job, traits), timeouts.limits(job).storage()
    with job.watchdog.waiting("the record of earlier attempts", 0, is_own=lambda: job.is_first, min_seconds=limit):
        record.share()
    if job.host.processes > 1:
        began = time.monotonic()
        bootstrap.join(job.host, *address, job.peers, timeouts.limits(job).join())
        job.measurements.record(JOIN, time.monotonic() - began)
    devices = _start_chips(job)
    seconds = time.monotonic() - job.events.began
    job.events.write("init", None, seconds, processes=job.host.processes, devices=devices)
    return traits, record


def _start_chips(job: Job, count: Callable[[], int] = jax.device_count) -> int:
    """Initialize this host's chips, for which all hosts wait; return the number of all chips."""
    began = time.monotonic()
    with job.watchdog.waiting("the initialization of the chips", 0, min_seconds=timeouts.limits(job).chips()):
        devices = count()
    job.measurements.record(CHIPS, time.monotonic() - began)
    return devices


def set_up(job: Job, coordinator_future: "Future[Address]") -> Run:
    """Join the other hosts and prepare everything; compiles nothing. Raises FatalError."""
    return prepare_run(job, *join(job, coordinator_future))


def prepare_run(job: Job, traits: consistency.Traits, record: RunRecord, *, has_started: bool = False) -> Run:
    """Prepare everything on hosts that have joined; `has_started`: other slices train already. Raises FatalError."""
    devices = jax.devices()
    if job.host.slice_id == 0 and (job.out / "checkpoints").is_folder():
        manager.warm_up()  # this host may restore; the others need Orbax only after their first step
    chips = layout.Chips(job.host.joined_slices, job.host.hosts_per_slice, jax.local_device_count())
    problems = layout.check(job.config, chips, job.host.replicas)
    if problems:
        raise FatalError(*problems)
    config = layout.one_slice(job.config, job.host.replicas)
    sizes = layout.layout(config, chips)
    batch = sizes.global_batch * job.host.replicas
    tokens, counts = _corpus(job, batch, functools.partial(_prepare_corpus, has_started=has_started))
    translation.check(job.config, tokens)
    detection.check(job.config)
    order = _order(job.config, tokens, counts, batch)
    mesh = make_mesh(sizes, devices, job.host.hosts_per_slice)
    slots = batches.make_slots(mesh, sizes.loader_hosts, chips.hosts, sizes.global_batch, shards=order.shards)
    own_slots = [chip for chip in slots.readers if mesh.devices.flat[chip].process_index == jax.process_index()]
    examples = job.config.run.steps * slots.rows * len(own_slots)
    read = _reader(job, tokens, counts, order, batches.shards_of(slots, own_slots, order), examples)
    notes, max_to_keep = _notes(job.config, tokens, order), job.config.checkpoint.max_to_keep
    if job.leads:
        _print_summary(job.config, mesh, sum(counts), batch)
    programs = step.build(config, mesh, slots, sizes, job.host.replicas)
    finite, is_emulated = Finite(mesh, programs.state), devices[0].platform == "cpu"
    return Run(
        job=job,
        records=sum(counts),
        order=order,
        mesh=mesh,
        slots=slots,
        batch=batch,
        programs=programs,
        compiler=_compiler(job, traits),
        checkpoints=Checkpoints(
            job.out / "checkpoints", max_to_keep, notes, job.peers, job.events, check_lease=job.lease.check
        ),
        local=LocalTier(job, notes),
        progress=_progress(job, order, chips.total * job.host.replicas, finite.names, is_emulated=is_emulated),
        finite=finite,
        stragglers=StragglerCheck(job, None if is_emulated else chip_benchmark),
        profiler=Profiler(job),
        replicas=Replicas(job.config.observe.checksum_every, mesh, programs.state, job.host, job.events),
        read=read,
        record=record,
    )


def _progress(job: Job, order: Order | BucketOrder, chips: int, names: Sequence[str], *, is_emulated: bool) -> Progress:
    """Return the log of the steps of all `chips`."""
    return Progress(
        job,
        order.batch,
        chips,
        lambda step: order.ids(step - 1),
        flops.int8_share(job.config),
        names,
        length=(lambda step: order.length(step - 1)) if isinstance(order, BucketOrder) else None,
        is_emulated=is_emulated,
        mllog=_mllog(job, order),
    )


def _notes(config: Config, tokens: Corpus, order: Order | BucketOrder) -> dict[str, Any]:
    """Return the notes that are saved with every checkpoint of the run."""
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


def _mllog(job: Job, order: Order | BucketOrder) -> MllogFile | None:
    """Return the file of MLPerf's log lines, on the process that leads, if they are written."""
    if not (job.leads and job.config.observe.mllog):
        return None
    began_seconds = time.time() - (time.monotonic() - job.events.began)
    held_out = sum(order.files) - order.records
    return MllogFile(
        job.out / "mllog.txt", job.config, order.batch, order.records, held_out, began_seconds=began_seconds
    )


def _print_summary(config: Config, mesh: Mesh, records: int, batch: int) -> None:
    """Print a summary of the model, mesh, batch and data in one line."""
    axes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items() if size > 1 or axis != "stage")
    count, example = registry.parameters(config.model), record(config.model)
    items = f"{records * example.items:,} {example.noun}s"
    metrics.say(f"{config.name}: {count:,} parameters   {axes}   batch {batch}   {items}")


def _compiler(job: Job, traits: consistency.Traits) -> Compiler:
    """Return the compiler of this job, with the programs of earlier attempts if `run.keep_programs`.

    Programs are shared only with a workload secret, with which hosts verify each other's files.
    """
    shared, secret, own_folder = job.out / "compile-cache", job.host.secret, scratch() / "compile-cache"
    if not secret:
        return Compiler(CompileCache(own_folder, None), job.peers)
    cache = CompileCache(own_folder, SignedFiles(shared / "jax", secret))
    keeps_programs, programs = job.config.run.keep_programs, SignedFiles(shared / "programs", secret)
    return Compiler(cache, job.peers, (lambda: Executables(programs, traits)) if keeps_programs else None)


def _corpus(job: Job, batch: int, prepare_corpus: Callable[[Job], Corpus]) -> tuple[Corpus, tuple[int, ...]]:
    """Prepare or find the data set on process 0 and announce it; only hosts that load data open its files.

    Returns (data set, records of each of its files).
    """
    began = time.monotonic()
    with timeouts.data(job, "the preparation of the data set", is_own=job.is_first):
        if job.is_first:
            corpus = prepare_corpus(job)
            counts = _check_counts(job, corpus, batch)
            job.peers.announce("corpus", [dataclasses.asdict(corpus), counts])
        notes, counts = job.peers.await_("corpus")
    job.events.write("data", None, time.monotonic() - began, records=sum(counts))
    return dataset.from_notes(notes["path"], notes), tuple(counts)


def _check_counts(job: Job, corpus: Corpus, batch: int) -> tuple[int, ...]:
    """Check that the data set is large enough, and print a summary; return the number of records of each file."""
    config = job.config
    counts = reader.counts(corpus, config.model, config.data.eval_fraction)
    checks.check_corpus(config, corpus, sum(counts), batch)
    if corpus.has_translations:
        _describe_pairs(config, corpus, counts)
        return counts
    if corpus.skipped:
        metrics.say(f"data: {corpus.skipped} binary or unreadable files skipped, {corpus.documents} used")
    if config.model.packed:
        full = corpus.tokens / (sum(counts) * record(config.model).length // 2)
        metrics.say(f"data: {corpus.documents:,} documents fill {full:.0%} of {sum(counts):,} packed examples")
    return counts


def _describe_pairs(config: Config, corpus: Corpus, counts: tuple[int, ...]) -> None:
    """Print how many pairs are left out and, if they are packed, how full the examples to train on are."""
    length = config.model.seq_len
    used = corpus.pairs(length)
    if longer := corpus.documents // 2 + corpus.skipped - used:
        metrics.say(f"data: {longer:,} pairs are longer than model.seq_len and left out, {used:,} used")
    if config.model.packed:
        tokens = sum(file.tokens for file in corpus.files if file.longest <= length)
        examples, trained = sum(counts[: len(corpus.files)]), used - sum(counts[len(corpus.files) :])
        # Held-out pairs are about as long as the others.
        full = tokens * trained / used / (2 * length * examples)
        metrics.say(f"data: {trained:,} pairs fill {full:.0%} of {examples:,} packed examples")


def _reader(
    job: Job,
    tokens: Corpus,
    counts: tuple[int, ...],
    order: Order | BucketOrder,
    shards: set[int],
    examples: int,
    open_reader: Callable[[Corpus, Model, tuple[int, ...]], Reader] | None = None,
) -> Reader | None:
    """Open the files of this host's shards and of the held-out records; wait until all hosts have done so.

    Files in a bucket are copied here, because a step that waited for them would count as hung. A host that trains on
    few `examples` of a file copies blocks when it reads them.
    """
    open_reader = open_reader or functools.partial(Reader, settings=job.config.data)
    read = open_reader(tokens, job.config.model, counts) if shards else None
    if read is not None:
        with timeouts.data(job, "its copy of the data", is_own=True):
            read.fetch([*itertools.chain(*map(order.ranges_of, shards)), range(order.records, sum(counts))], examples)
    with timeouts.data(job, "all hosts to have their data", is_own=False):
        job.peers.barrier("data")
    return read


def _prepare_corpus(job: Job, *, has_started: bool = False) -> Corpus:
    """Return the run's data set; prepare it in the output folder if necessary.

    Once the run has started, as `has_started` or a checkpoint says, it keeps its data set if the source changes.
    """
    folder = job.out / "data"
    has_started = has_started or bool(open_store(job.out / "checkpoints").steps())
    if job.config.checkpoint.local_every:
        has_started = has_started or local_tier.has_started(job.out)
    try:
        return preparation.prepare(job.config, folder, is_pinned=has_started)
    except (PermissionError, Unreachable):
        raise
    except OSError as error:
        raise StorageError(f"cannot prepare the data set in {folder}: {reason(error)}") from error
