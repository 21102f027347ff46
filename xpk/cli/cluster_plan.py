"""`xpk cluster adapt`, and what it shares with the other commands that carry out plans."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from xpk.capacity.plan import Plan
from xpk.capacity.provider import Provider, check_free, environment, load_provider, provider_of
from xpk.cli.gke_options import chosen_provider, place_options
from xpk.cli.options import Command, name_argument, the_name
from xpk.cli.output import FORMATS, Console, interactive
from xpk.cli.upstream import ClusterCommand
from xpk.model.accelerators import find_shape
from xpk.model.errors import UsageError

GCLOUD = "gcloud"  # an output format of commands that plan
_TELL_SECONDS = 30.0  # between two lines about what goes on, where there is no terminal

dry_run_option = click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")


def manifest_options(command: Command) -> Command:
    """Take where the controllers' manifests come from."""
    for name in ("Kueue", "JobSet"):
        flag = f"--{name.lower()}-manifest"
        command = click.option(flag, metavar="SOURCE", help=f"Where to install {name} from: path or URL.")(command)
    return command


def plan_output_option(command: Command) -> Command:
    """Take `-o` after a command that plans; `gcloud` prints the plan as commands."""
    formats = click.Choice((*FORMATS, GCLOUD))
    return click.option("-o", "--output", type=formats, help="How to print the plan.")(command)


@click.command(cls=ClusterCommand)
@name_argument("cluster")
@click.option("--context", metavar="CONTEXT", help="The context of your kubeconfig; its current one if left out.")
@click.option("--tpu-type", "--device-type", "accelerator_type", metavar="TYPE", help="Which of its slices are meant.")
@click.option("--emulated", is_flag=True, help="Let nodes without accelerators stand in for slices, one node each.")
@click.option("--num-slices", type=int, help="With --emulated: how many slices.")
@click.option("--output-root", metavar="PLACE", help="Where workloads write: gs://BUCKET/PREFIX, or a shared folder.")
@click.option("--trainer-image", metavar="IMAGE", help="The bundled trainer's image, as the nodes can pull it.")
@click.option(
    "--fenced/--no-fenced",
    default=None,
    help="A node that stays unreachable is dead for certain: its hosts are given up, and the workload moves on.",
)
@click.option("--provider", metavar="PROVIDER", help="gke: find it by its project instead of a context.")
@place_options
@manifest_options
@dry_run_option
@plan_output_option
@click.pass_obj
def adapt(
    console: Console,
    /,
    name: str | None,
    name_flag: str | None,
    context: str | None,
    accelerator_type: str | None,
    emulated: bool,
    num_slices: int | None,
    output_root: str | None,
    trainer_image: str | None,
    fenced: bool | None,
    provider: str | None,
    dry_run: bool,
    output: str | None,
    **flags: Any,
) -> None:
    """Prepare a Kubernetes cluster that exists: JobSet, Kueue, and a queue over the slices it has.

    Running it again changes only what has changed. Your kubeconfig is read, not written. A cluster of GKE is found
    by --project, without a context.
    """
    given = given_flags(flags)
    if chosen_provider(provider, given) == "gke":
        place = {"--output-root": output_root, "--trainer-image": trainer_image, **given}
        _adapt_gke(console.choosing(output), the_name("cluster", name, name_flag), place, dry_run=dry_run)
        return
    from xpk.capacity.adapted import Adaptation, AdaptedProvider  # the other commands do not need it

    wanted = Adaptation(
        name=the_name("cluster", name, name_flag),
        context=context,
        shape=find_shape(accelerator_type) if accelerator_type else None,
        emulated=emulated,
        num_slices=num_slices,
        output_root=output_root,
        trainer_image=trainer_image,
        fenced=fenced,
    )
    check_free(wanted.name, AdaptedProvider.name)
    environ = environment(AdaptedProvider.name, AdaptedProvider.settings, given)
    plan = AdaptedProvider(environ=environ).plan_adapt(wanted)
    next_command = f"xpk workload create NAME --cluster {wanted.name}"
    carry_out(console.choosing(output), plan, dry_run=dry_run, then=next_command)


def _adapt_gke(console: Console, name: str, flags: dict[str, str | None], *, dry_run: bool) -> None:
    from xpk.capacity.gke.provider import GkeProvider  # the other commands do not need it

    check_free(name, GkeProvider.name)
    given = {flag: value for flag, value in flags.items() if value}
    plan = GkeProvider(environ=environment(GkeProvider.name, GkeProvider.settings, given)).plan_adapt(name)
    carry_out(console, plan, dry_run=dry_run, then=f"xpk workload create NAME --cluster {name}")


def given_flags(flags: dict[str, Any]) -> dict[str, str]:
    """Return the flags that were given, by their names, as text."""
    return {
        f"--{name.replace('_', '-')}": os.pathsep.join(value) if isinstance(value, tuple) else str(value)
        for name, value in flags.items()
        if value not in (None, False, ())
    }


def provider_with(cluster: str, provider: str | None, flags: dict[str, Any]) -> Provider:
    """Return the provider that has a cluster; flags of one provider are for that one."""
    given = given_flags(flags)
    if not given:
        return provider_of(cluster, provider)
    kind = chosen_provider(provider, given)
    return load_provider(kind if kind == "gke" else provider_of(cluster, provider).name, given)


def ask(question: str) -> None:
    """Go on only if a person says so. Raises UsageError where there is none."""
    if not interactive():
        raise UsageError(f"{question[0].lower()}{question[1:]}", hint="say so with --yes")
    click.confirm(question, abort=True, err=True)


def carry_out(console: Console, plan: Plan, *, dry_run: bool, then: str = "") -> None:
    """Show a plan or carry it out. Only a dry run's plan is data."""
    if console.output == GCLOUD and not dry_run:
        raise UsageError("-o gcloud only prints the plan", hint="say so with --dry-run")
    if dry_run:
        _show(console, plan)
        if plan.refusal and not plan.facts.get("guess"):
            raise plan.refusal
        return
    console.tell(plan.summary)
    for note in plan.notes:
        console.tell(f"  {note}")
    live = Live(console)
    try:
        plan.carry_out(live.done, live.show, live.warn)
    except KeyboardInterrupt:
        console.tell("  next: the same command again; what is done already is not done twice")
        raise
    console.tell("nothing to do: it is so already" if not plan.steps else f"  next: {then}" if then else "done")


def _show(console: Console, plan: Plan) -> None:
    """Print a plan: data for programs, commands, or a list whose numbers say which steps go on at once."""
    if console.is_data:
        console.data({"summary": plan.summary, "steps": [step.title for step in plan.steps], **plan.facts})
        return
    if console.output == GCLOUD:
        if plan.steps and not any(step.commands for step in plan.steps):
            raise UsageError("-o gcloud is for clusters of the gke provider", hint="-o json, or no -o")
        for note in (plan.summary, *plan.notes):
            click.echo(f"# {note}")
        for command in (line for step in plan.steps for line in step.commands):
            click.echo(command)
        return
    click.echo(plan.summary)
    for note in plan.notes:
        click.echo(f"  {note}")
    for number, step in zip(plan.stages(), plan.steps, strict=True):
        click.echo(f"  {number}. {step.title}")
    if not plan.steps:
        click.echo("  nothing to do")


class Live:
    """Shows what goes on: one line that is overwritten on a terminal, else a line now and then."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock, self._last, self._shown = console, clock, clock(), 0
        self._tty = sys.stderr.isatty() and not console.quiet

    def done(self, text: str) -> None:
        """Say that a step is done."""
        self._clear()
        self._console.done(text)

    def warn(self, text: str) -> None:
        """Say what did not work and is put up with."""
        self._clear()
        self._console.tell(f"warning: {text}")

    def show(self, states: Mapping[str, str]) -> None:
        """Say how far the steps are that go on."""
        if not states or self._clock() - self._last < (1.0 if self._tty else _TELL_SECONDS):
            return
        self._last = self._clock()
        first = [f"{what.partition(':')[0]} ({state})" for what, state in list(states.items())[:3]]
        line = f"   {len(states)} go on: {', '.join(first)}{', ...' if len(states) > 3 else ''}"
        if not self._tty:
            self._console.tell(line)
            return
        self._clear()
        width = shutil.get_terminal_size().columns - 1
        click.echo(line[:width], err=True, nl=False)
        self._shown = min(len(line), width)

    def _clear(self) -> None:
        if self._shown:
            click.echo(f"\r{' ' * self._shown}\r", err=True, nl=False)
            self._shown = 0
