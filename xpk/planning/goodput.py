"""Goodput of a run that does not exist yet, or of an existing one with other settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from xpk.client import WorkloadHandle
from xpk.jobs.create import memory_estimate
from xpk.jobs.create.memory_estimate import Estimate
from xpk.jobs.forecast.assumptions import Assumptions
from xpk.jobs.forecast.forecast import GoodputForecast, Job, assumptions_of
from xpk.jobs.forecast.forecast import forecast_goodput as forecast_job
from xpk.jobs.forecast.measured import job_of_run
from xpk.jobs.status import reader
from xpk.jobs.status.in_place import with_restarts_in_place
from xpk.model.accelerators import SliceShape, find_shape
from xpk.model.errors import Problems, UsageError
from xpk.planning.prices import REGION, price_of
from xpk.proc import LocalRunner, Runner
from xpk_shared.goodput.failures import PRIOR_MTBF, FailureRate

TPU_TYPE = "v5litepod-256"


def forecast_goodput(
    *,
    config: str | None = None,
    settings: Sequence[str] = (),
    accelerator_type: str = TPU_TYPE,
    num_slices: int = 1,
    min_slices: int | None = None,
    step_seconds: float | None = None,
    workload: WorkloadHandle | None = None,
    mtbf_chip_hours: float = PRIOR_MTBF,
    assumptions: Mapping[str, float] | None = None,
    price: float | None = None,
    region: str = REGION,
    prices: Path | None = None,
    seed: int = 0,
    runner: Runner | None = None,
) -> GoodputForecast:
    """Return the forecast of the goodput of a run, with the best checkpoint intervals and spares.

    The step time is that of `workload`, `step_seconds`, or the expected one of `config` with `settings`
    ("section.key=value"). `workload`: an existing run, whose measured durations and restarts replace the defaults.
    `assumptions`: seconds and shares by the names of `xpk.jobs.forecast.assumptions.Assumptions`. `price`: US dollars
    for a chip and hour, instead of the list price of `region`. Raises UsageError with all problems of the request,
    NotFoundError if the workload does not exist or has not finished a step.
    """
    changed = dict(assumptions or {})
    _check(changed, num_slices, min_slices, step_seconds, mtbf_chip_hours, price)
    prior = FailureRate.prior(mtbf_chip_hours)
    if workload is not None:
        job = _job_of_workload(workload, prior)
        if step_seconds is not None:
            job = dataclasses.replace(job, step_seconds=step_seconds, step_source="option")
    else:
        job = _job_of_config(
            config, settings, find_shape(accelerator_type), num_slices, min_slices, step_seconds, prior, runner
        )
    if min_slices is not None:
        job = dataclasses.replace(job, min_slices=min_slices)
    values = {**job.values, **{name: (value, "option") for name, value in changed.items()}}
    job = dataclasses.replace(job, values=values)
    dollars = price_of(find_shape(job.tpu_type), price, region, prices)
    forecast = forecast_job(job, dollars, seed=seed)
    if dollars:
        return forecast
    note = f"no list price of {job.tpu_type} in {region} is known; pass a price"
    return dataclasses.replace(forecast, notes=[*forecast.notes, note])


def _check(
    assumptions: Mapping[str, float],
    num_slices: int,
    min_slices: int | None,
    step_seconds: float | None,
    mtbf_chip_hours: float,
    price: float | None,
) -> None:
    """Raise UsageError with all problems of a request."""
    problems = Problems()
    fields = {field.name: field for field in dataclasses.fields(Assumptions)}
    if num_slices < 1:
        problems.add(f"--num-slices must be at least 1, got {num_slices}")
    if min_slices is not None and not 1 <= min_slices <= num_slices:
        problems.add(f"--min-slices must be from 1 to --num-slices = {num_slices}, got {min_slices}")
    for name, value in (("step_seconds", step_seconds), ("mtbf_chip_hours", mtbf_chip_hours)):
        if value is not None and not 0 < value < float("inf"):
            problems.add(f"{name} must be above 0, got {value}")
    if price is not None and not 0 <= price < float("inf"):
        problems.add(f"price must be 0 or more, got {price}")
    for name, value in assumptions.items():
        if name not in fields:
            problems.add(f"unknown assumption '{name}'", hint=f"use one of {', '.join(fields)}")
        elif not 0 <= value <= (1 if fields[name].metadata["is_share"] else 1e9):
            limits = "from 0 to 1" if fields[name].metadata["is_share"] else "0 to 1e9 seconds"
            problems.add(f"{fields[name].metadata['flag']} must be {limits}, got {value}")
    problems.check("invalid forecast", hint="`xpk plan goodput --help`")


def _job_of_workload(workload: WorkloadHandle, prior: FailureRate) -> Job:
    from xpk.jobs.report import figures as reporting  # brings the charts

    status = with_restarts_in_place(
        reader.find(workload.cluster.api, workload.name, workload.namespace), workload.roots
    )
    account = reporting.account(status, workload.cluster.name, workload.roots)
    return job_of_run(account.record, status, prior, end=account.facts.end)


def _job_of_config(
    config: str | None,
    settings: Sequence[str],
    shape: SliceShape,
    num_slices: int,
    min_slices: int | None,
    step_seconds: float | None,
    prior: FailureRate,
    runner: Runner | None,
) -> Job:
    """Return the job of a configuration, by the trainer's estimate. Raises UsageError if it cannot be estimated."""
    job = Job(
        name=config or "run",
        tpu_type=shape.name,
        num_slices=num_slices,
        hosts_per_slice=shape.hosts,
        chips_per_slice=shape.chips,
        step_seconds=step_seconds or 1.0,
        rate=prior,
    )
    if config is None:
        if step_seconds is None:
            raise UsageError("the time of a step is unknown", hint="pass --config, --step-seconds or --from-workload")
        return job
    arguments = ["--config", config, *(word for setting in settings for word in ("--set", setting))]
    asking = runner or LocalRunner()
    figures = memory_estimate.estimate(asking, shape, num_slices, arguments, command="xpk plan goodput")
    job = dataclasses.replace(job, host_bytes=figures["state_gib"] * 2**30 * shape.chips_per_host)
    if step_seconds is None:
        source = "estimate: the expected time, never measured on a TPU"
        job = dataclasses.replace(job, step_seconds=figures["expected_step_seconds"], step_source=source)
    if num_slices == 1:
        return job
    return _with_elastic_estimate(job, asking, shape, arguments, figures, min_slices or num_slices // 2 + 1)


def _with_elastic_estimate(
    job: Job, runner: Runner, shape: SliceShape, arguments: Sequence[str], figures: Estimate, min_slices: int
) -> Job:
    """Return the job with the cost of elastic slices, or with a note if they do not fit or are not possible.

    `figures`: the estimate without elastic slices.
    """
    try:
        elastic = memory_estimate.estimate(runner, shape, job.num_slices, arguments, min_slices=min_slices)
    except UsageError as error:
        return dataclasses.replace(job, elastic_note=f"elastic slices are not possible: {error.problems[0]}")
    if not elastic["fits"]:
        needs = f"{elastic['peak_gib']:.1f} GiB of a chip's memory, of {elastic['hbm_gib']}"
        return dataclasses.replace(job, elastic_note=f"elastic slices need about {needs}")
    overhead = 1 - figures["expected_step_seconds"] / elastic["expected_step_seconds"]
    if overhead <= assumptions_of(job)[0].elastic_overhead:
        return job
    source = "estimate: the expected times of a step with and without elastic slices"
    return dataclasses.replace(job, values={"elastic_overhead": (overhead, source)})
