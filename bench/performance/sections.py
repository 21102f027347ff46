"""Text, table and ratios of each benchmark on the page."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bench.performance import plots

Content = Mapping[str, Any]
Rows = Iterator[list[str]]  # the first one is the header


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio to a peer; above 1 if xpk is better."""

    value: float
    what: str
    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A benchmark. `name` begins the names of its files."""

    name: str
    title: str
    command: str
    text: str
    table: Callable[[Content], Rows]
    headline: Callable[[Content], Iterator[Ratio]] = lambda content: iter(())
    draw: plots.Draw | None = None


def _commands(content: Content) -> Rows:
    yield ["command", "ratio", "xpk, s", "Google's xpk, s", "xpk, MB", "Google's xpk, MB", "xpk, requests"]
    for row in content["commands"]:
        ours, theirs = row["ours"], row["upstream"]
        peer = isinstance(theirs, dict)
        yield [
            f"`{row['command']}`",
            f"{row['wall_ratio']:.1f}" if peer else "no such command",
            f"{ours['wall_seconds']:.2f}",
            f"{theirs['wall_seconds']:.2f}" if peer else "",
            f"{ours['peak_mb']:.0f}",
            f"{theirs['peak_mb']:.0f}" if peer else "",
            str(ours["api_calls"]),
        ]


def _command_ratios(content: Content) -> Iterator[Ratio]:
    ratios = [row["wall_ratio"] for row in content["commands"] if "wall_ratio" in row]
    peer = f"Google's xpk {content['upstream']}"
    yield Ratio(statistics.median(ratios), f"time of a command, median of {len(ratios)}", peer)
    yield Ratio(min(ratios), "time of the command with the lowest ratio", peer)


def _startup(content: Content) -> Rows:
    yield ["command", "time next to `import click`", "CPU time next to it", "seconds"]
    for name, one in content["commands"].items():
        yield [f"`{name}`", f"{one['ratio']:.2f}", f"{one['cpu_ratio']:.2f}", f"{one['median_seconds']:.3f}"]


def _startup_ratio(content: Content) -> Iterator[Ratio]:
    yield Ratio(1 / content["commands"]["xpk --help"]["ratio"], "time of `xpk --help`", "`python -c 'import click'`")


def _install(content: Content) -> Rows:
    yield ["extra", "MB", "packages"]
    for one in content["installations"]:
        yield [one["extra"] or "none", f"{one['megabytes']:.1f}", str(one["packages"])]


def _recovery(content: Content) -> Rows:
    parts = list(plots.recovery_parts(content))
    yield ["case", "seconds", "lowest to highest", *parts]
    for case in content["cases"].values():
        seconds = [one["seconds"] for one in case["recoveries"]]
        medians = (plots.median_part(case, part) for part in parts)
        yield [
            case["what"],
            f"{statistics.median(seconds):.2f}",
            f"{min(seconds):.2f} to {max(seconds):.2f} ({len(seconds)})",
            *("" if value is None else f"{value:.2f}" for value in medians),
        ]


def _recovery_ratios(content: Content) -> Iterator[Ratio]:
    cases = {
        name: statistics.median(one["seconds"] for one in case["recoveries"]) for name, case in content["cases"].items()
    }
    if "kill" in cases and "kill-new-host" in cases:
        ratio = cases["kill-new-host"] / cases["kill"]
        yield Ratio(ratio, "SIGKILL of a trainer to the next step, restart in place", "new hosts")


def _kind(content: Content) -> Rows:
    yield ["case", "manifest", "seconds until all hosts run", "lowest to highest"]
    for case in content["cases"].values():
        seconds = [one["all run"] for one in case["seconds"] if one["all run"] is not None]
        median = f"{statistics.median(seconds):.2f}" if seconds else "never"
        limits = f"{min(seconds):.2f} to {max(seconds):.2f} ({len(seconds)})" if seconds else ""
        yield [case["what"], case["manifest"], median, limits]


def _kind_ratios(content: Content) -> Iterator[Ratio]:
    medians = {
        name: statistics.median(seconds)
        for name, case in content["cases"].items()
        if None not in (seconds := [one["all run"] for one in case["seconds"]])
    }
    if "waits-upstream" in medians and "waits-in-place" in medians:
        ratio = medians["waits-upstream"] / medians["waits-in-place"]
        yield Ratio(ratio, "SIGKILL of a JAX program on kind until all hosts run, in place", "Google's manifest")


def _elastic(content: Content) -> Rows:
    yield ["model", "step with joined slices / with elastic slices", "95% interval"]
    for name, one in content["ratio"].items():
        yield [name, f"{1 / one['median']:.3f}", f"{1 / one['high']:.3f} to {1 / one['low']:.3f}"]


def _elastic_ratios(content: Content) -> Iterator[Ratio]:
    for name, one in content["ratio"].items():
        yield Ratio(1 / one["median"], f"step with elastic slices, {name}", "the same with slices that JAX joins")


def _maxtext(content: Content) -> Rows:
    yield ["ratio", "CPU time", "95% interval", "clock", "95% interval"]
    for name, cpu in content["cpu_ratios"].items():
        yield [name, *(text for one in (cpu, content["ratios"][name]) for text in _spread(one))]


def _spread(one: Mapping[str, float]) -> Iterator[str]:
    yield from (f"{one['median']:.2f}", f"{one['low']:.2f} to {one['high']:.2f}")


def _maxtext_ratio(content: Content) -> Iterator[Ratio]:
    for peer in ("MaxText", "plain loop"):
        value = 1 / content["cpu_ratios"][f"trainer / {peer}"]["median"]
        yield Ratio(value, f"CPU time of a training step, emulated chips: {content['chips']}", peer)


def _mfu(content: Content) -> Rows:
    names = ("attention", "matrix products", "copies", "other kernels")
    yield ["parameters", "tokens", "attention", "remat", "unroll", "step, ms", "MFU", "attention counts half", *names]
    for run in content["runs"]:
        settings = _settings(run)
        yield [
            f"{run['parameters'] / 1e9:.2f} billion",
            f"{run['tokens_in_a_step']:,}",
            "kernel" if settings["model.fused_attention"] == "true" else "products",
            settings["model.remat"],
            settings.get("model.unroll", "1"),
            f"{1000 * statistics.median(run['step_seconds']):.0f}",
            f"{run['mfu']:.1%}",
            f"{run['mfu_with_half_of_attention']:.1%}",
            *(f"{1000 * run['seconds_by_kind'][name]:.0f} ms" for name in names),
        ]


def _mfu_ratio(content: Content) -> Iterator[Ratio]:
    steps: dict[bool, list[float]] = {True: [], False: []}
    for run in content["runs"]:
        if run["parameters"] > 2e9:
            steps[_settings(run)["model.fused_attention"] == "true"].append(statistics.median(run["step_seconds"]))
    if all(steps.values()):
        value = min(steps[False]) / min(steps[True])
        yield Ratio(value, f"training step on one {content['runs'][0]['device']}", "plain attention, in chunks")


def _settings(run: Mapping[str, Any]) -> dict[str, str]:
    return dict(setting.split("=", 1) for setting in run["settings"])


def _soak(content: Content) -> Rows:
    yield ["faults", "survived", "steps", "steps with another loss"]
    yield [str(content[key]) for key in ("faults", "survived", "steps", "steps_with_another_loss")]


def _start(content: Content) -> Rows:
    medians, exponents = content["summary"]["running_seconds"], content["summary"]["exponent"]
    yield ["hosts", *(f"{variant}, s" for variant in medians)]
    for hosts in sorted({hosts for sizes in medians.values() for hosts in sizes}, key=int):
        cells = (medians[variant].get(hosts) for variant in medians)
        yield [f"{int(hosts):,}", *("" if seconds is None else f"{seconds:.1f}" for seconds in cells)]
    yield ["exponent", *("" if exponents.get(name) is None else f"{exponents[name]:.2f}" for name in exponents)]


def _start_ratios(content: Content) -> Iterator[Ratio]:
    medians = content["summary"]["running_seconds"]
    for peer in [name for name in medians if name != "ours"]:
        if shared := medians["ours"].keys() & medians[peer].keys():
            most = max(shared, key=int)
            yield Ratio(medians[peer][most] / medians["ours"][most], f"start of {int(most):,} hosts", peer)


def _restart(content: Content) -> Rows:
    yield ["restart", "hosts", "seconds until all run again", "API writes a host", "CPU-ms a host"]
    for row in content["restarts"]:
        writes, cpu = row["writes_per_host"]["total"], row["cpu_ms_per_host"]["total"]
        yield [row["variant"], f"{row['hosts']:,}", f"{row['seconds']:.1f}", f"{writes:.1f}", f"{cpu:.1f}"]


def _queue(content: Content) -> Rows:
    classes = list(next(iter(content["queues"].values()))["classes"])
    yield ["queue", "seconds to the end", "admissions a second", "use of the quota", *(f"{c} wait, s" for c in classes)]
    for name, one in content["queues"].items():
        waits = (f"{one['classes'][c]['wait_mean']:.1f}" for c in classes)
        rate = f"{one['admissions_per_second']:.1f}"
        yield [name, f"{one['makespan']:.0f}", rate, f"{one['average_use_of_quota']:.0%}", *waits]


def _queue_ratio(content: Content) -> Iterator[Ratio]:
    ours, peer = content["queues"]["local"], content["queues"]["Kueue"]
    what = f"{ours['workloads']} workloads through the local queue"
    yield Ratio(peer["makespan"] / ours["makespan"], what, "the real Kueue on this machine")


def _pools(content: Content) -> Rows:
    yield ["cloud", "slices", "plan, s", "plan and apply, s", "CPU, s", "requests to the cloud"]
    for one in content["creates"]:
        both = one["plan_and_apply"]
        seconds = [f"{value:.1f}" for value in (one["plan"]["wall_seconds"], both["wall_seconds"], both["cpu_seconds"])]
        yield [one["name"], str(one["num_slices"]), *seconds, str(sum(both["cloud_calls"].values()))]


SECTIONS = (
    Section(
        name="commands",
        title="Commands next to Google's xpk",
        command="python -m bench.commands",
        text="The external programs that Google's xpk calls are replaced by scripts that answer at once.",
        table=_commands,
        headline=_command_ratios,
        draw=plots.draw_commands,
    ),
    Section(
        name="startup",
        title="Startup",
        command="python -m bench.startup",
        text="Whole processes, measured in turn. The limit of `xpk --help` is 2.",
        table=_startup,
        headline=_startup_ratio,
    ),
    Section(
        name="recovery",
        title="Recovery on one machine",
        command="python -m bench.recovery",
        text="Seconds from the signal to the end of the next finished step, with 2 slices of 2 hosts, as medians.",
        table=_recovery,
        headline=_recovery_ratios,
        draw=plots.draw_recovery,
    ),
    Section(
        name="recovery-kind",
        title="Recovery on kind",
        command="python -m bench.recovery_kind",
        text="A host's process is killed, or a node is frozen. `upstream` is the manifest of Google's xpk.",
        table=_kind,
        headline=_kind_ratios,
    ),
    Section(
        name="start-at-scale",
        title="Start of thousands of hosts",
        command="python -m bench.start_at_scale",
        text="From the submission to the last running pod, with real controllers and KWOK's nodes, 64 hosts a slice.",
        table=_start,
        headline=_start_ratios,
        draw=plots.draw_start,
    ),
    Section(
        name="restart-at-scale",
        title="Restart of thousands of hosts",
        command="python -m bench.restart_at_scale",
        text="One host fails: new pods for all hosts, or for its slice, or new processes in the same pods.",
        table=_restart,
    ),
    Section(
        name="queue",
        title="Queues",
        command="python -m bench.queue",
        text="Small, medium and full-size workloads of rising priority: the classes of Kueue's scalability test.",
        table=_queue,
        headline=_queue_ratio,
    ),
    Section(
        name="gke-scale",
        title="Clusters on GKE",
        command="python -m bench.gke_scale",
        text="`cluster create` against the emulator, whose cloud is instant, or takes the times assumed for GKE.",
        table=_pools,
    ),
    *(
        Section(
            name=f"maxtext-{chips}",
            title=f"Training step next to MaxText, {chips} emulated chip{'s' * (chips > 1)}",
            command=f"python -m bench.maxtext --chips {chips}",
            text="The same small decoder in float32. Ratios below 1 mean that the trainer is faster.",
            table=_maxtext,
            headline=_maxtext_ratio,
        )
        for chips in (1, 4)
    ),
    Section(
        name="mfu",
        title="Model FLOPs utilization on one H100",
        command="python -m bench.mfu",
        text=(
            "Decoders in bfloat16 on one NVIDIA H100 80GB, whose peak is 989 TFLOP/s; the product of two matrices of\n"
            "8192 x 8192 reached 80% to 83% of it. Times of kernels are from a profile. In the run with 47.2% XLA's\n"
            "Triton kernels were off."
        ),
        table=_mfu,
        headline=_mfu_ratio,
    ),
    Section(
        name="elastic",
        title="Elastic slices without failures",
        command="python -m bench.elastic",
        text="Blocks of steps of two runs in turn: elastic slices, and slices that JAX joins.",
        table=_elastic,
        headline=_elastic_ratios,
    ),
    Section(
        name="soak",
        title="Random faults",
        command="python -m e2e.soak",
        text="At the end, all losses are compared with those of an undisturbed run, bit by bit.",
        table=_soak,
    ),
    Section(
        name="install",
        title="Size of an installation",
        command="python -m bench.install",
        text="New environments, without bytecode. Google's xpk takes 382 MB.",
        table=_install,
    ),
)
