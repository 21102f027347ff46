"""Flags and commands of Google's xpk without an effect here: accepted with a warning, or rejected by name."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import click

from xpk.cli.terminal.help import Command, CommandGroup
from xpk.cli.terminal.output import Console
from xpk.model.errors import UsageError

_NETWORKS, _NETWORK = "--authorized-networks", re.compile(r"[0-9a-fA-F:.]+(/[0-9]+)?")

_NO_PATHWAYS = "Pathways is not supported; multi-controller JAX is"
_NO_HEADLESS = "it starts only Pathways' proxy, and Pathways is not supported; pass --command, which every host runs"
_NO_MTC = "the trainer saves to the workload's output folder"
_READING = "xpk.only-reading"
_HINT = "`xpk docs migrating-from-xpk` lists all flags"


@dataclass(frozen=True, slots=True)
class Ignored:
    """A flag that is accepted and has no effect. `takes_value`: the next word is its value.

    `unneeded`: leaving it out changes nothing; otherwise something that it requests is lost.
    """

    why: str
    takes_value: bool = False
    unneeded: bool = False


_REPORT = "`xpk workload report` writes the report as a page"
_WHOLE_MACHINES = "quotas count accelerators, and each host has a whole machine"
# Flags of `cluster` that are accepted with a warning.
CLUSTER = {
    "--enable-pathways": Ignored(_NO_PATHWAYS),
    "--pathways-gce-machine-type": Ignored(_NO_PATHWAYS, takes_value=True),
    "--ray-version": Ignored("the workload's image determines the Ray version", takes_value=True),
    "--create-vertex-tensorboard": Ignored(_REPORT),
    "--tensorboard-region": Ignored(_REPORT, takes_value=True),
    "--tensorboard-name": Ignored(_REPORT, takes_value=True),
    "--managed-mldiagnostics": Ignored(_REPORT),
    "--enable-mtc": Ignored(_NO_MTC),
    **dict.fromkeys(("--mtc-ramdisk-size", "--mtc-gcs-bucket", "--mtc-toleration-key"), Ignored(_NO_MTC, True)),
    **dict.fromkeys(("--cpu-limit", "--memory-limit"), Ignored(_WHOLE_MACHINES, True, unneeded=True)),
    "--cluster-state-gcs-bucket": Ignored("the state is read from the cluster itself", takes_value=True, unneeded=True),
    "--project-number": Ignored("the project's ID is sufficient", takes_value=True, unneeded=True),
    "--cache-key": Ignored("images are cached by their names", takes_value=True, unneeded=True),
    "--skip-validation": Ignored("validation always runs and changes nothing", unneeded=True),
    "--dependency-auto-download": Ignored("only the manifests of JobSet and Kueue are downloaded", unneeded=True),
    "--sandbox-kubeconfig": Ignored("your kubeconfig is never changed", unneeded=True),
    "--namespace": Ignored("`xpk queue create -n NAMESPACE` adds a namespace to a cluster's queue", True),
}
_HOSTS_OUTPUT = "hosts write to XPK_OUTPUT_DIR; --node-folder /dev/shm mounts their node's memory"
# Flags of `workload` that are accepted with a warning.
WORKLOAD = {
    "--project-number": Ignored("the project's ID is sufficient", takes_value=True, unneeded=True),
    "--docker-name": Ignored("the container is always named `host`", takes_value=True, unneeded=True),
    "--ramdisk-directory": Ignored(_HOSTS_OUTPUT, takes_value=True),
    "--mtc-enabled": Ignored(_HOSTS_OUTPUT),
    "--deploy-stacktrace-sidecar": Ignored("py-spy on a host shows stacks; `workload describe -o json` shows its pid"),
    **dict.fromkeys(("--use-vertex-tensorboard", "--create-vertex-tensorboard"), Ignored(_REPORT)),
    **dict.fromkeys(("--tensorboard-region", "--tensorboard-name"), Ignored(_REPORT, takes_value=True)),
    "--experiment-name": Ignored("the workload's name is the experiment's name", takes_value=True),
    "--use-parallel-containers": Ignored("one process drives all chips of a host", unneeded=True),
    **dict.fromkeys(("--cpu-limit", "--memory-limit"), Ignored(_WHOLE_MACHINES, takes_value=True, unneeded=True)),
    "--skip-validation": Ignored("validation always runs and changes nothing", unneeded=True),
    "--dependency-auto-download": Ignored("workloads have no dependencies to download", unneeded=True),
    "--sandbox-kubeconfig": Ignored("your kubeconfig is never changed", unneeded=True),
    "--use-pathways": Ignored(_NO_PATHWAYS),
    **dict.fromkeys(
        (
            *("--proxy-server-image", "--server-image", "--colocated-python-sidecar-image", "--pathways-gcs-location"),
            *("--custom-pathways-server-args", "--custom-pathways-proxy-server-args", "--custom-pathways-worker-args"),
            *("--elastic-slices", "--max-slice-restarts"),
        ),
        Ignored(_NO_PATHWAYS, takes_value=True),
    ),
}
REFUSED_OF_WORKLOAD = {
    "--headless": _NO_HEADLESS,
    "--dry-run": "only `xpk workload create` and `xpk workload delete` have it",
}
_NODES_EXIST = "the nodes exist, and their capacity is read from them"
_LATER = "`xpk cluster create` with the same name adds it to an existing cluster"
ADAPT = {
    **dict.fromkeys(("--on-demand", "--spot", "--flex"), Ignored(_NODES_EXIST, unneeded=True)),
    "--reservation": Ignored(_NODES_EXIST, takes_value=True, unneeded=True),
    "--enable-autoprovisioning": Ignored(_LATER),
    "--autoprovisioning-min-chips": Ignored(_LATER, takes_value=True),
    "--autoprovisioning-max-chips": Ignored(_LATER, takes_value=True),
}
_OF_CLAIM = "the claim or its manifest determines it"
STORAGE = {
    "--enable-legacy-lustre-port": Ignored("`xpk cluster create --enable-legacy-lustre-port` sets it"),
    **dict.fromkeys(
        ("--size", "--tier", "--access-mode", "--vol", "--instance"), Ignored(_OF_CLAIM, True, unneeded=True)
    ),
}
# Commands that run another one, with a warning about the difference.
CLUSTER_COMMANDS = {
    "create-pathways": ("create", f"{_NO_PATHWAYS}; running `xpk cluster create`"),
    "create-ray": ("create", "every cluster runs Ray with `xpk workload create --launcher ray`"),
}
WORKLOAD_COMMANDS = {"create-pathways": ("create", f"{_NO_PATHWAYS}; every host runs the command")}
# By command: flags without any of which Google's xpk takes all objects, and the flag for that here.
ALL_WITHOUT = {
    "workload delete": (("--workload", "--filter-by-job", "--filter-by-status", "--selector", "-l"), "--all"),
}
_ONE_COMMAND = "`xpk workload create NAME --command COMMAND` runs a command, and `xpk workload logs NAME -f` follows it"
# Commands of earlier releases of Google's xpk, with the replacement.
REMOVED_COMMANDS = {
    "kind": "`xpk cluster create NAME --provider kind` creates a kind cluster",
    **dict.fromkeys(("batch", "run"), _ONE_COMMAND),
    "shell": "`xpk workload exec NAME -- bash` opens a shell on a host",
    "job": "`xpk workload list`, `xpk workload status NAME` and `xpk workload delete NAME`",
}


def refuse(arguments: list[str], reasons: Mapping[str, str]) -> None:
    """Raise UsageError for every flag of Google's xpk in `arguments` that is not supported."""
    flags = [argument.partition("=")[0] for argument in arguments]
    problems = [f"{flag} is not supported: {reasons[flag]}" for flag in dict.fromkeys(flags) if flag in reasons]
    if problems:
        raise UsageError(problems[0], problems=problems, hint=_HINT)


def joined(args: list[str]) -> list[str]:
    """Return arguments with `--authorized-networks A B C` as one value, since Google's xpk accepts several words."""
    arguments: list[str] = []
    taking = False
    for argument in args:
        if taking and _NETWORK.fullmatch(argument):
            arguments[-1] = f"{arguments[-1]},{argument}" if arguments[-1] != _NETWORKS else f"{_NETWORKS}={argument}"
            continue
        taking = argument.partition("=")[0] == _NETWORKS
        arguments.append(argument)
    return arguments


def _ignoring(flag: str, ignored: Ignored) -> click.Option:
    """Return a hidden option that only warns that it has no effect."""

    def warn(ctx: click.Context, option: click.Parameter, value: Any) -> None:
        if ctx.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE:
            ctx.obj.warn(f"{flag} has no effect: {ignored.why}")

    name = flag if ignored.takes_value else f"{flag}/--no-{flag[2:]}"
    return click.Option([name], hidden=True, expose_value=False, callback=warn)


def _only_reading(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.meta[_READING] = value


class CompatibleCommand(Command):
    """A command that rejects unsupported flags of Google's xpk by name, before click reports them as unknown."""

    foreign: ClassVar[Mapping[str, str]] = {}
    ignored: ClassVar[Mapping[str, Ignored]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own_flags = {flag for parameter in self.params for flag in parameter.opts}
        self.params += [_ignoring(flag, ignored) for flag, ignored in self.ignored.items() if flag not in own_flags]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reject unsupported flags."""
        own_flags = {flag for parameter in self.params for flag in parameter.opts}
        refuse(args, {flag: why for flag, why in self.foreign.items() if flag not in own_flags})
        return super().parse_args(ctx, args)


class ClusterCommand(CompatibleCommand):
    """A command that accepts the flags of Google's `xpk cluster`; one that only reads accepts --dry-run, too."""

    foreign, ignored = {"--headless": _NO_HEADLESS}, CLUSTER

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not any("--dry-run" in parameter.opts for parameter in self.params):
            hidden: dict[str, Any] = {"is_flag": True, "expose_value": False, "hidden": True}
            self.params.append(click.Option(["--dry-run"], **hidden, callback=_only_reading))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accept lists of networks."""
        return super().parse_args(ctx, joined(args))

    def invoke(self, ctx: click.Context) -> Any:
        """Do nothing in a dry run of a command that only reads."""
        if ctx.meta.get(_READING):
            console: Console = ctx.obj.choosing(ctx.params.get("output"))
            console.tell(f"`{ctx.command_path}` changes nothing; run it without --dry-run")
            if console.is_data and self.name == "list":
                console.data([])
            return None
        return super().invoke(ctx)


class AdaptCommand(ClusterCommand):
    """A command that accepts the flags of Google's `xpk cluster adapt`."""

    ignored = CLUSTER | ADAPT


class StorageCommand(ClusterCommand):
    """A command that accepts the flags of Google's `xpk storage`."""

    ignored = CLUSTER | STORAGE

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accept --access_mode, a spelling in the documentation of Google's xpk."""
        return super().parse_args(ctx, [re.sub(r"^--access_mode\b", "--access-mode", argument) for argument in args])


class WorkloadCommand(CompatibleCommand):
    """A command that accepts the flags of Google's `xpk workload` and keeps arguments after `--` separate.

    `list` accepts --dry-run and then makes no request.
    """

    foreign, ignored = REFUSED_OF_WORKLOAD, WORKLOAD

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.name == "list":
            hidden: dict[str, Any] = {"is_flag": True, "expose_value": False, "hidden": True}
            self.params.append(click.Option(["--dry-run"], **hidden, callback=_only_reading))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split at the first `--`; the rest is passed to the trainer unchanged."""
        if "--" in args:
            at = args.index("--")
            args, ctx.meta["trainer_args"] = args[:at], tuple(args[at + 1 :])
        if any(param.name == "dry_run" and isinstance(param.type, click.Choice) for param in self.params):
            # As in kubectl, a value requires `=`, so that `--dry-run NAME` keeps its name.
            args = ["--dry-run=client" if argument == "--dry-run" else argument for argument in args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Do nothing in a dry run of a command that only reads."""
        if ctx.meta.get(_READING):
            ctx.obj.warn(f"--dry-run has no effect: `{ctx.command_path}` changes nothing; nothing was read")
            return None
        return super().invoke(ctx)


class Group(CommandGroup):
    """A group that accepts commands of Google's xpk.

    `other_names` are aliases; `instead` maps a command to the one that replaces it and a warning; `modules` has the
    module and the name of commands that are imported when they are used.
    """

    def __init__(
        self,
        *args: Any,
        other_names: Mapping[str, str] | None = None,
        instead: Mapping[str, tuple[str, str]] | None = None,
        modules: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._other_names, self._instead, self._modules = other_names or {}, instead or {}, modules or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(ctx), *self._modules})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by any of its names."""
        name = self._other_names.get(cmd_name, cmd_name)
        name = name if name in self._modules else self._SHORT_NAMES.get(name, name)
        if name in self._modules and name not in self.commands:
            module, _, attribute = self._modules[name].partition(":")
            self.add_command(getattr(importlib.import_module(module), attribute))
        return super().get_command(ctx, name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Replace a command of Google's xpk by its equivalent."""
        if args and args[0] in self._instead:
            name, why = self._instead[args[0]]
            ctx.obj.warn(f"{args[0]}: {why}")
            args = [name, *args[1:]]
        return super().resolve_command(ctx, args)
