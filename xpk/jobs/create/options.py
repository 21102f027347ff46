"""Parsers of workload options: environment, exit codes, command and image."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from xpk.model import names
from xpk.model.accelerators import SliceShape
from xpk.model.errors import UsageError
from xpk.model.specs import Target, WorkloadSpec, image_problems
from xpk.model.workload_options import FATAL_EXIT_CODES
from xpk.storage import in_bucket
from xpk.storage.text import read_text
from xpk_shared.supervisor.names import PREFLIGHT

TRAINER_IMAGE = "xpk-trainer"
COMMAND_IMAGE = "python:3.11-slim"  # default for a --command
_LOCAL_PATH = re.compile(r"(--set=)?checkpoint\.local_path=")
# As in Google's xpk, and the codes of hosts that end because another host was lost.
_ALWAYS_RESTARTING = frozenset({42, 75, 76, *range(127, 256)})
_BUCKET_ENV = ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS")


def parse_env(pairs: Iterable[str], files: Iterable[Path], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of `--env K=V` and `--env-file`; later values win, flags over files.

    A file holds `K=V` lines verbatim, or `K` alone for this shell's value; `#` begins a comment.
    Raises UsageError with all problems.
    """
    env: dict[str, str] = {}
    problems: list[str] = []
    for file in files:
        try:
            lines = read_text(file, what="--env-file", encoding="utf-8-sig").splitlines()
        except FileNotFoundError as error:
            problems.append(f"cannot read --env-file {file}: {error.strerror}")
            continue
        except UsageError as error:
            problems.append(error.message)
            continue
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.lstrip().startswith("#"):
                _take(line.strip(), f"{file}:{number}", env, problems, environ)
    for pair in pairs:
        if "=" in pair:
            _take(pair, "--env", env, problems, environ)
        else:
            problems.append(f"--env {pair!r} has no '='; write NAME=VALUE")
    for key, value in env.items():
        problems += names.env_problems(key, value)
    if problems:
        raise UsageError("invalid environment", problems=problems, hint="pass --env NAME=VALUE once per variable")
    return env


def fatal_exit_codes(fatal: str | None, restarting: str | None) -> tuple[int, ...]:
    """Return the exit codes that fail a workload without a restart.

    `fatal` is `--fatal-exit-codes`. `restarting` is `--restart-on-exit-codes` of Google's xpk: all other codes fail the
    workload, except those that always restart it.
    """
    if fatal and restarting:
        raise UsageError("--fatal-exit-codes and --restart-on-exit-codes exclude each other", hint="pass one of them")
    if restarting:
        return tuple(sorted(set(range(1, 256)) - _ALWAYS_RESTARTING - _codes(restarting, "--restart-on-exit-codes")))
    return tuple(sorted({*FATAL_EXIT_CODES, *(_codes(fatal, "--fatal-exit-codes") if fatal else ())}))


def _codes(text: str, flag: str) -> set[int]:
    """Return the exit codes of a list such as `"3,10-12"`. Raises UsageError."""
    codes: set[int] = set()
    for part in text.split(","):
        first, _, last = (end.strip() for end in part.partition("-"))
        if not (first.isdecimal() and (last or first).isdecimal() and 1 <= int(first) <= int(last or first) <= 255):
            message = f"{flag} '{text}' is not a list of codes from 1 to 255: '{part.strip()}'"
            raise UsageError(message, hint="use a list such as 3,10-12")
        codes.update(range(int(first), int(last or first) + 1))
    return codes


def check_resume(*, resume: bool, fresh: bool) -> None:
    """Raise UsageError if both --resume and --fresh are set."""
    if resume and fresh:
        raise UsageError("--resume and --fresh exclude each other", hint="pass one of them")


@dataclass(frozen=True, slots=True)
class Ray:
    """The Ray cluster of a workload's hosts."""

    dashboard: bool = False
    join_seconds: float = 300.0  # time limit for hosts to join
    ships_code: bool = False


def ray_command(
    command: str | None, trainer_args: tuple[str, ...], ray: Ray, shape: SliceShape, *, max_restarts: int
) -> tuple[str, ...]:
    """Return the command of every host of a Ray cluster: the program on the head, or the trainer's actors."""
    options = [f"--join-seconds={ray.join_seconds:.0f}", *(["--dashboard"] if ray.dashboard else [])]
    options += ["--ship-code"] if ray.ships_code else []
    if shape.kind != "cpu":
        options += [f"--chips={shape.chips_per_host}", f"--resource={shape.kind.upper()}"]
        options += [f"--accelerator={shape.name}", *([f"--topology={shape.topology}"] if shape.topology else [])]
    program = host_command(command, trainer_args)
    if command is not None:
        return ("python", "-m", "xpk_ray", "run", *options, "--", *program)
    return ("python", "-m", "xpk_ray", "train", *options, f"--max-restarts={max_restarts}", "--", *trainer_args)


def host_command(command: str | None, trainer_args: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command of every host: the user's in a shell, or the bundled trainer."""
    if command is None:
        if trainer_args and not trainer_args[0].startswith("-"):
            raise UsageError(
                f"the bundled trainer takes options after `--`, got '{trainer_args[0]}'",
                hint=f"to run a program, pass --command {shlex.quote(shlex.join(trainer_args))}",
            )
        return ("python", "-m", "trainer", "train", *trainer_args)
    if trainer_args:
        raise UsageError(
            f"--command and trainer arguments ({shlex.join(trainer_args)}) exclude each other",
            hint="omit --command to run the bundled trainer",
        )
    if not command.strip():
        raise UsageError("--command is empty", hint="omit it to run the bundled trainer")
    return ("bash", "-c", command)


def with_preflight(command: tuple[str, ...], node_folder: str | None) -> tuple[str, ...]:
    """Return a command that checks the hosts, with this folder of their nodes, before it runs `command`."""
    return (*PREFLIGHT, *(["--disk", node_folder] if node_folder else []), "--", *command)


def check_preflight(*, preflight: bool, launcher: str) -> None:
    """Raise UsageError for --preflight with Ray, which uses the ports of the checks."""
    if preflight and launcher == "ray":
        raise UsageError(
            "--preflight and --launcher ray exclude each other",
            hint="omit --preflight; `xpk cluster preflight` checks free slices",
        )


def files_here(texts: Iterable[str]) -> list[str]:
    """Return the files of the current folder, and modules after `-m`, that commands and arguments name."""
    words: list[str] = []
    for text in texts:
        try:
            words += shlex.split(text)
        except ValueError:  # unclosed quotes: bash reports them
            words += text.split()
    local_files = []
    for before, word in zip(["", *words], words, strict=False):
        name = word.rstrip(";&|)").rpartition("=")[2]
        module = name.replace(".", "/")
        files = (f"{module}.py", f"{module}/__main__.py") if before == "-m" else (name,)
        if any(map(_is_here, files)):
            local_files.append(name)
    return local_files


def _is_here(name: str) -> bool:
    try:
        return not os.path.isabs(name) and os.path.isfile(name)
    except ValueError:  # a NUL character
        return False


def choose_image(image: str | None, target: Target, *, cluster: str, needs_trainer: bool) -> str:
    """Return the hosts' image. Raises UsageError if none is known, or if the requested name is invalid."""
    if image:
        if problems := image_problems([image]):
            raise UsageError(problems[0], hint="pass --docker-image [REGISTRY/]NAME[:TAG][@DIGEST]")
        return image
    if target.on_this_machine:
        return TRAINER_IMAGE
    if target.trainer_image is None and needs_trainer:
        build = f"xpk image build REGISTRY/xpk-trainer {'' if target.emulated else '--tpu '}--push"
        raise UsageError(
            f"cluster '{cluster}' has no trainer image",
            hint=f"`{build}` builds one; pass it with --docker-image, or set it with `xpk config set image IMAGE`",
        )
    return target.trainer_image or COMMAND_IMAGE


def check_local_path(trainer_args: Sequence[str], spec: WorkloadSpec) -> None:
    """Raise UsageError if local checkpoints would be deleted with the pods that they must outlive."""
    paths = [word[match.end() :] for word in trainer_args if (match := _LOCAL_PATH.match(word))]
    if not paths or not paths[-1] or spec.target.on_this_machine:
        return
    path, folders = PurePosixPath(paths[-1]), (spec.node_folder, spec.target.shared_folder)
    if not any(folder and path.is_relative_to(folder) for folder in folders):
        raise UsageError(
            f"checkpoint.local_path={path} is a folder of the pods, and is deleted with them",
            hint=f"pass --node-folder {path}; the folder must exist on the nodes and be writable, like /dev/shm",
        )


def bucket_env(target: Target, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables by which hosts on this machine reach the bucket: its server and this user's credentials."""
    if not (target.on_this_machine and in_bucket(target.output_root)):
        return {}
    return {key: environ[key] for key in _BUCKET_ENV if environ.get(key)}


def _take(pair: str, source: str, env: dict[str, str], problems: list[str], environ: Mapping[str, str]) -> None:
    key, equals, value = pair.partition("=")
    if key.startswith("export "):
        problems.append(f"{source}: write {key.removeprefix('export ').strip()}=... without `export`")
    elif equals:
        env[key] = value
    elif key in environ:
        env[key] = environ[key]
    else:
        problems.append(f"{source}: '{key}' has no '=' and is not set in this shell")
