"""Layout of help pages: options in sections, full summaries, examples at the end; `-q` and `-v` in any position."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import click

from xpk.cli.terminal.output import COLORS, colors
from xpk.model.errors import UsageError

# Sections of a help page and their flags, in the order of the page. A flag without a section is under "Options".
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Cluster": (
        "--cluster", "--clusters", "--workload", "--queue", "--context", "--provider", "--project", "--zone",
        "--region", "--namespace",
    ),
    "Capacity": (
        "--tpu-type", "--num-slices", "--num-nodes", "--nodes-per-slice", "--spare-slices", "--on-demand", "--spot",
        "--reservation", "--flex", "--queued-provisioning", "--sub-slicing", "--super-slicing",
        "--ignore-nodepool-creation-errors",
        "--at-once", "--roll-back", "--retain", "--emulated", "--fenced",
    ),
    "Code and image": (
        "--command", "--script-dir", "--docker-image", "--base-docker-image", "--docker-image-pull-secret",
        "--docker-name", "--file", "--debug-dump-gcs", "--env", "--env-file", "--env-from-secret",
        "--enable-debug-logs", "--launcher", "--ray-dashboard", "--ray-join-timeout", "--service-account",
        "--run-as-user", "--read-only-root", "--network-policy",
    ),
    "Storage": ("--output-root", "--storage", "--mount", "--node-folder", "--ramdisk-directory"),
    "Scheduling": (
        "--priority", "--max-priority", "--scheduler", "--max-run-duration", "--move-after", "--estimate", "--label",
    ),
    "Cost": ("--budget", "--by", "--max-cost", "--price", "--spot-price", "--prices"),
    "Failures and recovery": (
        "--mtbf-chip-hours", "--spot-mtbf-chip-hours", "--detection", "--machine-detection", "--restart-processes",
        "--restart-pods", "--restart-slice", "--compilation", "--restore", "--local-restore", "--save", "--local-save",
        "--commit", "--local-commit", "--stall", "--repair", "--process-share", "--local-share", "--elastic-overhead",
        "--seed",
    ),
    "Failure handling": (
        "--preflight", "--max-restarts", "--min-slices", "--restart-in-place", "--standby-imports",
        "--restart-on-exit-codes", "--fatal-exit-codes", "--peer-watch", "--resume", "--fresh",
        "--termination-grace-period-seconds", "--ttl-seconds-after-finished",
        "--reason", "--evict", "--by-evidence", "--max-percent",
    ),
    "Control plane and nodes (gke)": (
        "--gke-version", "--release-channel", "--default-pool-cpu-machine-type", "--default-pool-cpu-num-nodes",
        "--host-maintenance-interval", "--max-pods-per-node", "--custom-cluster-arguments",
        "--custom-nodepool-arguments", "--custom-tpu-nodepool-arguments",
    ),
    "Network (gke)": (
        "--network", "--subnetwork", "--private", "--authorized-networks", "--enable-private-endpoint",
        "--private-endpoint-subnetwork", "--enable-master-global-access",
    ),
    "Identity and storage add-ons (gke)": (
        "--enable-workload-identity", "--disable-workload-identity", "--node-scopes", "--enable-gcsfuse-csi-driver",
        "--enable-gcpfilestore-csi-driver", "--enable-parallelstore-csi-driver", "--enable-pd-csi-driver",
        "--enable-lustre-csi-driver", "--enable-legacy-lustre-port",
    ),
    "Autoprovisioning (gke)": (
        "--enable-autoprovisioning", "--autoprovisioning-min-chips", "--autoprovisioning-max-chips",
        "--autoprovisioning-max-cpu", "--autoprovisioning-max-memory",
    ),
    "Images and controllers": (
        "--node-image", "--trainer-image", "--base-image", "--image-archive", "--jobset-manifest", "--kueue-manifest",
        "--gpudirect-manifests",
    ),
    "Output": (
        "--dry-run", "--when", "--output-manifest-file", "--wait", "--timeout", "--output", "--watch", "--sort-by",
        "--no-headers", "--color", "--yes", "--force",
    ),
}  # fmt: skip
_SECTION_OF = {flag: section for section, flags in SECTIONS.items() for flag in flags}
_ORDER = {flag: number for number, flag in enumerate(_SECTION_OF)}
_OTHERS = "Options"
_SUGGESTED, _INSIDE_CUTOFF = 3, 0.7  # suggestions for an unknown command, and their similarity inside of groups
_FEW = 8  # up to this many options are shown without sections
# Examples at the end of a command's help page.
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "xpk cluster create": (
        "xpk cluster create dev --tpu-type v5litepod-8 --num-slices 2",
        "xpk cluster create dev --provider kind --tpu-type v5litepod-8 --num-slices 2",
        "xpk cluster create prod --project P --zone us-east5-a --spot --tpu-type v5litepod-256 --dry-run",
    ),
    "xpk cluster adapt": ("xpk cluster adapt prod --context my-context --output-root gs://my-bucket/runs",),
    "xpk cluster resize": ("xpk cluster resize dev --num-slices 4",),
    "xpk cluster list": ("xpk cluster list -o wide",),
    "xpk cluster describe": ("xpk cluster describe dev",),
    "xpk cluster delete": ("xpk cluster delete dev --yes",),
    "xpk cluster preflight": (
        "xpk cluster preflight prod",
        "xpk cluster preflight prod --node prod-np-3-0 --node prod-np-4-0",
        "xpk cluster preflight prod --min-dcn-gbps 5 -o json",
    ),
    "xpk cluster fence": ("xpk cluster fence prod --dry-run", "xpk cluster fence prod --watch --max-nodes 4 --per 10m"),
    "xpk cluster health": ("xpk cluster health dev",),
    "xpk cluster kubeconfig": ("kubectl --kubeconfig <(xpk cluster kubeconfig dev) get pods",),
    "xpk cluster cache-image": ("xpk cluster cache-image prod --image us-docker.pkg.dev/my-project/images/train:1",),
    "xpk workload create": (
        "xpk workload create hello --command 'echo host $TPU_WORKER_ID of slice $MEGASCALE_SLICE_ID'",
        "xpk workload create lm --num-slices 2 --max-restarts 3 -- --config tiny --set data.path=stdlib",
        "xpk workload create mine --num-slices 2 --script-dir . --command 'python train.py'",
        "xpk workload create -f mine.yaml --num-slices 4",
        "xpk workload create big --num-slices 8 --command 'python train.py' --when",
        "xpk workload create big --clusters east,west --output-root gs://my-bucket/runs --num-slices 8",
    ),
    "xpk workload place": ("xpk workload place big --cluster east", "xpk workload place big --cluster east --to west"),
    "xpk workload list": ("xpk workload list", "xpk workload list -A -o json"),
    "xpk workload status": ("xpk workload status lm",),
    "xpk workload describe": ("xpk workload describe lm -o yaml",),
    "xpk workload logs": ("xpk workload logs lm -f", "xpk workload logs lm --slice 0 --host 1 --tail 100"),
    "xpk workload wait": ("xpk workload wait lm --timeout 2h",),
    "xpk workload report": ("xpk workload report lm --open", "xpk workload report lm --compare lm-lr2"),
    "xpk workload delete": ("xpk workload delete lm --yes", "xpk workload delete --all --yes"),
    "xpk workload exec": ("xpk workload exec lm --slice 0 --host 1 -- nvidia-smi",),
    "xpk workload port-forward": ("xpk workload port-forward lm 9999:9999",),
    "xpk workload suspend": ("xpk workload suspend lm",),
    "xpk workload resume": ("xpk workload resume lm",),
    "xpk workload diff": ("xpk workload diff lm --num-slices 4 --command 'python train.py'",),
    "xpk workload estimate": ("xpk workload estimate --config 128b --tpu-type v5litepod-256 --num-slices 199",),
    "xpk plan goodput": (
        "xpk plan goodput --config 128b --num-slices 199",
        "xpk plan goodput --from-workload lm --mtbf-chip-hours 20000",
    ),
    "xpk plan capacity": ("xpk plan capacity --config 64b --tokens 1e12 --by 2027-12-01 --budget 1e6",),
    "xpk queue create": ("xpk queue create red --namespace team-red --quota 25%",),
    "xpk queue list": ("xpk queue list --cluster dev",),
    "xpk queue describe": ("xpk queue describe red",),
    "xpk queue simulate": (
        "xpk queue simulate --add-slices red=2",
        "xpk queue simulate --replay last-week.jsonl --quota red=4",
    ),
    "xpk queue delete": ("xpk queue delete red --yes",),
    "xpk mcp": ("xpk mcp --scope plan",),
    "xpk usage": ("xpk usage --since 7d --by team,cause", "xpk usage --since 2026-11-01 --by user -o csv"),
    "xpk node list": ("xpk node list --cluster prod",),
    "xpk node quarantine": (
        "xpk node quarantine prod-np-3-0 --reason 'two chips are slow' --evict",
        "xpk node quarantine --by-evidence --watch --evict",
    ),
    "xpk node return": ("xpk node return prod-np-3-0 --preflight", "xpk node return prod-np-3-0"),
    "xpk storage list": ("xpk storage list --cluster prod",),
    "xpk storage detach": ("xpk storage detach data --cluster prod",),
    "xpk storage delete": ("xpk storage delete data --cluster prod",),
    "xpk version": ("xpk version --cluster prod",),
    "xpk translate": (
        "xpk translate 'gcluster job logs train --follow'",
        "xpk translate -o json < my-commands.txt",
    ),
    "xpk data prepare": (
        "xpk data prepare TEXT --out gs://my-bucket/tokens --tokenizer spm.model",
        "xpk data prepare IMAGENET --out gs://my-bucket/images --config resnet50",
        "xpk data prepare COCO --out gs://my-bucket/objects --config ssd",
        "xpk data prepare train.en --target train.de --out gs://my-bucket/pairs --config transformer",
        "xpk data prepare CRITEO --out gs://my-bucket/clicks --config dlrm",
    ),
    "xpk image push": ("xpk image push us-docker.pkg.dev/my-project/images/train:1",),
    "xpk doctor": ("xpk doctor --provider kind", "xpk doctor --cluster dev"),
    "xpk config set": ("xpk config set cluster dev",),
    "xpk config get": ("xpk config get cluster",),
    "xpk config list": ("xpk config list",),
    "xpk config unset": ("xpk config unset cluster",),
    "xpk config explain": ("xpk config explain cluster",),
    "xpk serve": ("xpk serve", "xpk serve --cluster dev --port 0"),
    "xpk top": ("xpk top", "xpk top -A -o json"),
    "xpk docs": ("xpk docs", "xpk docs queues"),
    "xpk accelerator list": ("xpk accelerator list --family v5p",),
    "xpk accelerator describe": ("xpk accelerator describe v5litepod-256",),
}


class Command(click.Command):
    """A command whose help has sections and examples, and that accepts global flags after its name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _take_global_flags(self)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Raises UsageError with a hint."""
        with _hinting(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises UsageError with a hint."""
        with _hinting(ctx):
            return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, in sections where there are many."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for parameter in sorted(self.get_params(ctx), key=_position):
            if (record := parameter.get_help_record(ctx)) and record[1]:  # arguments are in the usage line
                section = next((_SECTION_OF[flag] for flag in parameter.opts if flag in _SECTION_OF), _OTHERS)
                rows.setdefault(section, []).append(record)
        if sum(map(len, rows.values())) <= _FEW:
            rows = {_OTHERS: [row for section in rows.values() for row in section]}
        for section in (*SECTIONS, _OTHERS):
            if section in rows:
                with formatter.section(section):
                    formatter.write_dl(rows[section])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        super().format_epilog(ctx, formatter)
        if examples := EXAMPLES.get(ctx.command_path):
            with formatter.section("Examples"):
                formatter.write("".join(_example(line, formatter.current_indent, formatter.width) for line in examples))


@contextmanager
def _hinting(ctx: click.Context) -> Iterator[None]:
    """Name the command's help where an invalid request has no other hint."""
    try:
        yield
    except UsageError as error:
        error.hint = error.hint or f"`{ctx.command_path} --help`"
        raise


def _position(parameter: click.Parameter) -> int:
    """Return where an option stands among those with a section; those without one follow in their own order."""
    return min((_ORDER[flag] for flag in parameter.opts if flag in _ORDER), default=len(_ORDER))


def _example(command: str, indent: int, width: int) -> str:
    """Return a command on as many lines as it needs, which a shell takes as one; an option stays with its value."""
    margin = " " * indent
    words = re.findall(r"(?:--?[\w-]+ )?(?:'[^']*'|[^-\s]\S*)|\S+", command)
    lines = [words[0]]
    for word in words[1:]:
        if len(margin) + len(lines[-1]) + len(word) + len("  \\") > width:
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}"
    return " \\\n".join(margin + line for line in lines) + "\n"


class CommandGroup(click.Group):
    """A group whose help shows full summaries, and that accepts `ls`, `rm` and global flags."""

    command_class = Command
    _SHORT_NAMES: Mapping[str, str] = {"ls": "list", "rm": "delete"}
    # What kubectl, docker, Slurm and SkyPilot call it; the first command that the group has is suggested.
    _OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
        "cancel": ("delete",), "get": ("list",), "kill": ("delete",), "launch": ("create",), "ps": ("list",),
        "run": ("create",), "show": ("describe", "list"), "stop": ("suspend", "delete"), "submit": ("create",),
    }  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _take_global_flags(self)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name or its short one."""
        return super().get_command(ctx, cmd_name) or super().get_command(ctx, self._SHORT_NAMES.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See `click.Group`; the names that other tools have for a command, and misspelled ones, lead to ours."""
        if ctx.resilient_parsing or args[0].startswith("-") or self.get_command(ctx, args[0]):
            return super().resolve_command(ctx, args)
        near = self._other_name(ctx, args[0]) or self._closest(ctx, args[0])
        suggestion = f". Did you mean {' or '.join(map(repr, near))}?" if near else ""
        return ctx.fail(f"No such command '{args[0]}'{suggestion}")

    def _other_name(self, ctx: click.Context, name: str) -> list[str]:
        """Return the command that other tools call by this name, if any."""
        return [ours for ours in self._OTHER_NAMES.get(name, ()) if ours in self.list_commands(ctx)][:1]

    def _closest(self, ctx: click.Context, name: str) -> list[str]:
        """Return the closest commands: of this group, else of groups in it, which are only imported then."""
        names = self.list_commands(ctx)
        if near := difflib.get_close_matches(name, names, 1):
            return near
        groups = {group: command for group in names if isinstance(command := self.get_command(ctx, group), click.Group)}
        inside = [(group, sub) for group, command in groups.items() for sub in command.list_commands(ctx)]
        closest = difflib.get_close_matches(name, {sub for _, sub in inside}, 1, _INSIDE_CUTOFF)
        return [f"{group} {sub}" for group, sub in inside if sub in closest][:_SUGGESTED]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with the first sentence of their help."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, command.get_short_help_str(limit=1000))
                    for name, command in commands
                    if command and not command.hidden
                ]
            )


def _take_global_flags(command: click.Command) -> None:
    """Add `-q`, `-v` and `--color` as hidden options, unless the command has its own."""
    taken = {flag for parameter in command.params for flag in parameter.opts}
    options: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
        (("-q", "--quiet"), {"is_flag": True, "callback": _set_quiet}),
        (("-v", "--verbose"), {"is_flag": True}),
        (("--color",), {"type": click.Choice(COLORS), "callback": _choose_color}),
    )
    for flags, attributes in options:
        if free := [flag for flag in flags if flag not in taken]:
            command.params.append(click.Option(free, expose_value=False, hidden=True, **attributes))


def _choose_color(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value:
        ctx.color = colors(value)
        ctx.obj = replace(ctx.obj, color=ctx.color)


def _set_quiet(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.obj = replace(ctx.obj, quiet=True)
