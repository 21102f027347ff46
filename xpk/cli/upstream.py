"""Flags of Google's xpk that mean nothing here: each says so by name and offers what to use."""

from __future__ import annotations

import re

import click

from xpk.model.errors import UsageError

_OF_CLUSTER = "leave it out: it belongs to the cluster, `xpk cluster create` takes it"
_NETWORKS, _NETWORK = "--authorized-networks", re.compile(r"[0-9a-fA-F:.]+(/[0-9]+)?")
_NOT_NEEDED = "leave it out: it is not needed here"

CLUSTER = {
    "--enable-pathways": "Pathways is not supported; multi-controller JAX is",
    "--pathways-gce-machine-type": "Pathways is not supported; multi-controller JAX is",
    "--create-vertex-tensorboard": "`xpk workload report` writes a page without any service",
    "--tensorboard-region": "`xpk workload report` writes a page without any service",
    "--tensorboard-name": "`xpk workload report` writes a page without any service",
    "--managed-mldiagnostics": "`xpk workload report` writes a page without any service",
    "--enable-mtc": "the trainer saves to the workload's output folder",
    "--num-cubes": "super-slicing is not supported; a slice is one node pool",
    "--super-slicing": "super-slicing is not supported; a slice is one node pool",
    "--cpu-limit": "quotas count accelerators: hosts have their whole machine",
    "--memory-limit": "quotas count accelerators: hosts have their whole machine",
    "--adapt-from-ct": "`xpk cluster adapt NAME --provider gke` takes any cluster that exists",
    "--cluster-state-gcs-bucket": "leave it out: the cluster itself is the state",
    "--project-number": _NOT_NEEDED,
    "--skip-validation": _NOT_NEEDED,
    "--dependency-auto-download": _NOT_NEEDED,
    "--sandbox-kubeconfig": "leave it out: your kubeconfig is never touched",
}
WORKLOAD = {
    **dict.fromkeys(("--project-number", "--spot", "--on-demand", "--reservation", "--flex"), _OF_CLUSTER),
    "--restart-on-exit-codes": "every exit code restarts but those of --fatal-exit-codes",
    "--base-docker-image": "use --docker-image; --script-dir ships your code to any image that has Python",
    "--docker-name": "the container is always called `host`",
    "--scheduler": "hosts are placed by the cluster's default scheduler",
    "--storage": "XPK_OUTPUT_DIR is shared by all hosts",
    "--ramdisk-directory": "the trainer saves to XPK_OUTPUT_DIR",
    "--mtc-enabled": "the trainer saves to XPK_OUTPUT_DIR",
    "--debug-dump-gcs": "set XLA_FLAGS=--xla_dump_to=... with --env",
    "--deploy-stacktrace-sidecar": "use py-spy on a host: `xpk workload describe -o json` gives its pid",
    "--enable-debug-logs": "set TPU_MIN_LOG_LEVEL=0 and TF_CPP_MIN_LOG_LEVEL=0 with --env",
    "--use-vertex-tensorboard": "`xpk workload report` writes a page without any service",
    "--experiment-name": "the workload's name is the experiment's",
    "--use-parallel-containers": _NOT_NEEDED,
    "--skip-validation": _NOT_NEEDED,
    "--sandbox-kubeconfig": "leave it out: your kubeconfig is never touched",
}


def refuse(arguments: list[str], known: dict[str, str]) -> None:
    """Raise UsageError for every flag of Google's xpk in `arguments` that is not supported."""
    given = [argument.partition("=")[0] for argument in arguments]
    problems = [f"{flag} is not supported: {known[flag]}" for flag in dict.fromkeys(given) if flag in known]
    if problems:
        raise UsageError(problems[0], problems=problems, hint="docs/migrating-from-xpk.md has the whole table")


def _joined(args: list[str]) -> list[str]:
    """Return arguments with `--authorized-networks A B C` as one value: Google's xpk takes several words there."""
    found: list[str] = []
    taking = False
    for argument in args:
        if taking and _NETWORK.fullmatch(argument):
            found[-1] = f"{found[-1]},{argument}" if found[-1] != _NETWORKS else f"{_NETWORKS}={argument}"
            continue
        taking = argument.partition("=")[0] == _NETWORKS
        found.append(argument)
    return found


class ClusterCommand(click.Command):
    """A command that knows the flags of `xpk cluster` elsewhere."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse foreign flags by name before click calls them unknown; take lists of networks."""
        refuse(args, CLUSTER)
        return super().parse_args(ctx, _joined(args))


class WorkloadCommand(click.Command):
    """A command that knows the flags of `xpk workload` elsewhere, and keeps what follows `--` apart."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split at the first `--`; the rest is for the trainer, whole."""
        if "--" in args:
            at = args.index("--")
            args, ctx.meta["trainer_args"] = args[:at], tuple(args[at + 1 :])
        refuse(args, WORKLOAD)
        # As kubectl has it: a value is given with `=` only, so that `--dry-run NAME` keeps its name.
        args = ["--dry-run=client" if argument == "--dry-run" else argument for argument in args]
        return super().parse_args(ctx, args)
