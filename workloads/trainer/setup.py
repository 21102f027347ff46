"""What a run needs before its first step: hosts joined, data prepared, mesh laid out, programs built."""

# mypy: disallow-untyped-calls=False

import dataclasses
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import jax
from jax.sharding import Mesh

from trainer import checkpoint, corpus, data, distributed, dots, drawn, layout, metrics, models, step
from trainer.checkpoint import Checkpoints
from trainer.compiling import Compiler
from trainer.config import Config
from trainer.corpus import Corpus
from trainer.errors import FatalError, StorageError, reason
from trainer.job import Address, Job
from trainer.local_tier import LocalTier
from trainer.mesh import make_mesh
from trainer.progress import Progress
from trainer.records import Record, record
from trainer.replicas import Replicas
from trainer.step import Programs


@dataclasses.dataclass(frozen=True)
class Run:
    """Everything that stays the same from the first step of this attempt to the last."""

    job: Job
    corpus: Corpus
    mesh: Mesh
    slots: data.Slots
    batch: int
    programs: Programs
    compiler: Compiler
    checkpoints: Checkpoints
    local: LocalTier
    progress: Progress
    replicas: Replicas
    read: data.Read | None  # None on a host that does not load

    @property
    def held_out(self) -> int:
        """Records kept for evaluation."""
        return corpus.eval_records(self.job.config, self.records)

    @property
    def records(self) -> int:
        """All records of the corpus."""
        return self.corpus.records(self.job.config.model)

    @property
    def example(self) -> Record:
        """What an example of the model is."""
        return record(self.job.config.model)

    @property
    def step_items(self) -> int:
        """Tokens, or images, that a step trains on."""
        return self.batch * self.example.items

    def train_ids(self, step: int) -> Iterator[Any]:
        """Yield the record ids [batch] of every step after finished step `step`."""
        return _train_ids(self.job.config, self.corpus, self.batch, step)

    def blocks(self, ids_B: Any) -> data.Blocks:
        """Read this host's part of a batch and put it on its chips."""
        return data.to_blocks(self.mesh, self.slots, ids_B, self.read, self.example)


def _train_ids(config: Config, tokens: Corpus, batch: int, step: int) -> Iterator[Any]:
    records = tokens.records(config.model)
    return data.train_ids(config.data.seed, batch, records - corpus.eval_records(config, records), step)


def set_up(job: Job, meeting: "Future[Address]") -> Run:
    """Join the other hosts and prepare everything; compiles nothing. Raises FatalError."""
    address = meeting.result()
    if job.host.processes > 1:
        distributed.join(job.host, *address)
    devices = jax.devices()
    job.events.write(
        "init", None, time.monotonic() - job.events.began, processes=job.host.processes, devices=len(devices)
    )
    if job.host.slice_id == 0 and (job.out / "checkpoints").is_folder():
        checkpoint.warm_up()  # it will read; the other hosts need Orbax only after their first step
    chips = layout.Chips(job.host.num_slices, job.host.hosts_per_slice, jax.local_device_count())
    problems = layout.check(job.config, chips)
    if problems:
        raise FatalError(*problems)
    sizes = layout.layout(job.config, chips)
    tokens = _corpus(job, sizes.global_batch)
    mesh = make_mesh(sizes, devices, job.host.hosts_per_slice)
    slots = data.make_slots(mesh, sizes.loader_hosts, chips.hosts, sizes.global_batch)
    loads = any(mesh.devices.flat[place].process_index == jax.process_index() for place in slots.readers)
    notes = _notes(job.config, tokens, sizes.global_batch)
    place = job.out / "checkpoints"
    if job.is_first:
        _introduce(job.config, mesh, tokens, sizes.global_batch)
    programs = step.build(job.config, mesh, slots, sizes)
    return Run(
        job=job,
        corpus=tokens,
        mesh=mesh,
        slots=slots,
        batch=sizes.global_batch,
        programs=programs,
        compiler=Compiler(str(job.out / "compile-cache"), job.peers),
        checkpoints=Checkpoints(place, job.config.checkpoint.keep, notes, job.peers, job.events),
        local=LocalTier(job, notes),
        progress=Progress(
            job,
            sizes.global_batch,
            chips.total,
            lambda step: next(_train_ids(job.config, tokens, sizes.global_batch, step - 1)),
            dots.int8_share(job.config),
        ),
        replicas=Replicas(job.config.observe.checksum_every, mesh, programs.state, job.host, job.events),
        read=data.open_records(tokens, corpus.local(tokens), record(job.config.model)) if loads else None,
    )


def _notes(config: Config, tokens: Corpus, batch: int) -> dict[str, Any]:
    """Return what is kept with every checkpoint of the run."""
    return {
        "model": dataclasses.asdict(config.model),
        "optimizer": config.optim.state_notes(),
        "data": tokens.digest,
        "seed": config.data.seed,
        "global_batch": batch,
    }


def _introduce(config: Config, mesh: Mesh, tokens: Corpus, batch: int) -> None:
    """Say in one line what is trained on what."""
    axes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items() if size > 1 or axis != "stage")
    count, example = models.parameters(config.model), record(config.model)
    items = f"{tokens.records(config.model) * example.items:,} {example.noun}s"
    metrics.say(f"{config.name}: {count:,} parameters   {axes}   batch {batch}   {items}")


def _corpus(job: Job, batch: int) -> Corpus:
    """Let process 0 make or find the token file and tell the others of it; only hosts that load open it."""
    began = time.monotonic()
    config = job.config
    if job.is_first:
        begun = bool((job.out / "checkpoints").shelf().steps())
        folder, wanted = job.out / "data", config.data
        try:
            if wanted.path == corpus.DRAWN:
                made = drawn.prepare(config.model, folder, wanted.max_bytes)
            else:
                made = corpus.prepare(wanted.path, folder, wanted.suffixes, wanted.max_bytes, pinned=begun)
        except PermissionError:
            raise  # no retry cures it
        except OSError as error:
            raise StorageError(f"the token file cannot be made in {folder}: {reason(error)}") from error
        corpus.check_corpus(config, made, batch)
        if made.skipped:
            metrics.say(f"data: {made.skipped} binary or unreadable files skipped, {made.documents} used")
        job.peers.announce("corpus", dataclasses.asdict(made))
    found = Corpus(**job.peers.await_("corpus"))
    job.events.write("data", None, time.monotonic() - began, records=found.records(config.model))
    return found
