"""Flags of Google's xpk that mean nothing here: each says so by name and offers what to use."""

from __future__ import annotations

import click

from xpk.model.errors import UsageError

_CLOUD = "the GKE provider is not there yet; `local` and `kind` emulate any --tpu-type without a cloud"
_NOT_NEEDED = "leave it out: it is not needed here"

CLUSTER = {
    **dict.fromkeys(
        (
            "--project",
            "--project-number",
            "--zone",
            "--region",
            "--spot",
            "--on-demand",
            "--reservation",
            "--flex",
            "--gke-version",
            "--private",
            "--authorized-networks",
            "--enable-workload-identity",
            "--enable-gcsfuse-csi-driver",
            "--enable-gcpfilestore-csi-driver",
            "--enable-autoprovisioning",
            "--default-pool-cpu-machine-type",
            "--default-pool-cpu-num-nodes",
            "--host-maintenance-interval",
            "--custom-cluster-arguments",
            "--custom-nodepool-arguments",
            "--custom-tpu-nodepool-arguments",
        ),
        _CLOUD,
    ),
    "--enable-pathways": "Pathways is not supported; multi-controller JAX is",
    "--create-vertex-tensorboard": "`xpk workload report` writes a page without any service",
    "--skip-validation": _NOT_NEEDED,
    "--dependency-auto-download": _NOT_NEEDED,
    "--sandbox-kubeconfig": "leave it out: your kubeconfig is never touched",
}
WORKLOAD = {
    **dict.fromkeys(
        ("--project", "--project-number", "--zone", "--spot", "--on-demand", "--reservation", "--flex"), _CLOUD
    ),
    "--restart-on-exit-codes": "every exit code restarts but those of --fatal-exit-codes",
    "--script-dir": "hosts start in the folder you are in; nothing has to be shipped",
    "--base-docker-image": "use --docker-image",
    "--docker-name": "the container is always called `host`",
    "--docker-image-pull-secret": _CLOUD,
    "--scheduler": _CLOUD,
    "--storage": "XPK_OUTPUT_DIR is shared by all hosts",
    "--ramdisk-directory": "the trainer saves to XPK_OUTPUT_DIR",
    "--mtc-enabled": "the trainer saves to XPK_OUTPUT_DIR",
    "--debug-dump-gcs": "set XLA_FLAGS=--xla_dump_to=... with --env",
    "--deploy-stacktrace-sidecar": "use py-spy on a host: `xpk workload describe -o json` gives its pid",
    "--enable-debug-logs": "set TPU_MIN_LOG_LEVEL=0 and TF_CPP_MIN_LOG_LEVEL=0 with --env",
    "--use-vertex-tensorboard": "`xpk workload report` writes a page without any service",
    "--experiment-name": "the workload's name is the experiment's",
    "--use-parallel-containers": _NOT_NEEDED,
    "--num-nodes": "use --num-slices",
    "--skip-validation": _NOT_NEEDED,
    "--sandbox-kubeconfig": "leave it out: your kubeconfig is never touched",
}


def refuse(arguments: list[str], known: dict[str, str]) -> None:
    """Raise UsageError for every flag of Google's xpk in `arguments` that is not supported."""
    given = [argument.partition("=")[0] for argument in arguments]
    problems = [f"{flag} is not supported: {known[flag]}" for flag in dict.fromkeys(given) if flag in known]
    if problems:
        raise UsageError(problems[0], problems=problems, hint="docs/migrating-from-xpk.md has the whole table")


class ClusterCommand(click.Command):
    """A command that knows the flags of `xpk cluster` elsewhere."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse foreign flags by name before click calls them unknown."""
        refuse(args, CLUSTER)
        return super().parse_args(ctx, args)


class WorkloadCommand(click.Command):
    """A command that knows the flags of `xpk workload` elsewhere, and keeps what follows `--` apart."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split at the first `--`; the rest is for the trainer, whole."""
        if "--" in args:
            at = args.index("--")
            args, ctx.meta["trainer_args"] = args[:at], tuple(args[at + 1 :])
        refuse(args, WORKLOAD)
        return super().parse_args(ctx, args)
