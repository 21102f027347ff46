"""What a run leaves behind to be read: metrics.jsonl, events, and the log on stdout.

The forms are those of docs/environment.md. A line is written with one system call, so it is never torn,
and a full disk costs lines, never the run.
"""

import contextlib
import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from trainer.config import Model


class JsonLines:
    """Append JSON lines to a file; several threads may write."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        _end_torn_line(path, self._fd)
        self._complained = False

    def write(self, record: dict[str, Any]) -> None:
        """Append one record."""
        try:
            os.write(self._fd, json.dumps(record).encode() + b"\n")
        except OSError as error:
            if not self._complained:
                print(f"warning: metrics cannot be written: {error.strerror}", file=sys.stderr, flush=True)
            self._complained = True


@dataclasses.dataclass(frozen=True, slots=True)
class Events:
    """This host's own event file."""

    lines: JsonLines
    slice_id: int
    host: int
    attempt: int
    began: float  # time.monotonic() at the process's start

    def write(self, event: str, step: int | None = None, seconds: float | None = None, **more: Any) -> None:
        """Append an event that has just ended and took `seconds`."""
        record = {"time": time.time(), "event": event, "slice": self.slice_id, "host": self.host}
        rounded = None if seconds is None else round(seconds, 4)
        self.lines.write(record | {"attempt": self.attempt, "step": step, "seconds": rounded} | more)


def parameters(model: Model) -> int:
    """Number of parameters; the embedding table is also the output projection and counts once."""
    layer = 4 * model.embed * model.heads * model.head_dim + 2 * model.embed * model.mlp + 2 * model.embed
    return model.vocab * model.embed + model.layers * layer + model.embed


def flops_per_token(model: Model) -> float:
    """Model FLOPs of a training step per token: 6 N + 12 L H Q T.

    Chowdhery et al., PaLM, appendix B: N parameters used in matrix products (norm gains are not, the tied
    embedding is, as the output projection), L layers, H heads of width Q, T tokens of context. Forward and
    backward pass; recomputation (remat) is not counted, and neither is the causal mask taken off.
    """
    gains = (2 * model.layers + 1) * model.embed
    attention = 12 * model.layers * model.heads * model.head_dim * model.seq_len
    return 6.0 * (parameters(model) - gains) + attention


def mfu(model: Model, tokens_per_second: float, chips: int, peak_flops: float | None) -> float | None:
    """Model FLOPs utilisation, 0 to 1; None where the chip's peak (bf16 FLOP/s) is not known."""
    return flops_per_token(model) * tokens_per_second / (chips * peak_flops) if peak_flops else None


def peak_flops(environ: dict[str, str]) -> float | None:
    """Read a chip's peak bf16 FLOP/s from XPK_PEAK_FLOPS; None if unset or no positive number."""
    try:
        value = float(environ.get("XPK_PEAK_FLOPS", ""))
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


def losses(path: Path) -> dict[int, float]:
    """Return the loss of every step in metrics.jsonl; of a step that was trained twice, the later one."""
    found: dict[int, float] = {}
    with contextlib.suppress(OSError), path.open(encoding="utf-8") as lines:
        for line in lines:
            with contextlib.suppress(ValueError):  # a line that a kill or a full disk cut short
                record = json.loads(line)
                if "loss" in record:
                    found[record["step"]] = record["loss"]
    return found


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a small file whole or not at all."""
    partial = path.with_name(f".{path.name}.tmp")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def say(text: str) -> None:
    """Print a line for people, at once."""
    print(text, flush=True)


def _end_torn_line(path: Path, fd: int) -> None:
    """A killed writer may have left half a line; keep it from swallowing the next one."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n":
            os.write(fd, b"\n")
