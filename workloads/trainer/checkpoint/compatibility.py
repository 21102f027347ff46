"""Compatibility of a checkpoint with a run, from the checkpoint's notes, before anything is compiled."""

import dataclasses
from typing import Any

from trainer.config import IMAGE_FAMILIES, Model, Optim
from trainer.data.tokenizer import BYTES
from trainer.errors import Problem
from trainer.former_names import current_section

# Settings of a model that may change between attempts.
_MAY_CHANGE = (
    *("compute_dtype", "remat", "unroll", "fused_attention", "attention_chunk", "loss_chunk", "seq_len", "packed"),
    *("dropout", "space_to_depth", "batch_lengths", "beam", "length_penalty", "placements", "rows_per_exchange"),
    *("max_boxes", "mask", "detections", "pooling"),
)

# The notes that determine the examples of each step and of the evaluation.
_EXAMPLES = {
    "data": "the corpus",
    "seed": "data.seed",
    "global_batch": "data.global_batch",
    "order": "the shuffling",
    "seq_len": "model.seq_len",
    "packed": "model.packed",
    "batch_lengths": "model.batch_lengths",
    "trained": "the number of trained examples",
    "held_out": "the number of held-out examples",
}
_KEEPS_SPLIT = ("seed", "global_batch", "order")  # changes that move no example between training and evaluation


def mismatch(checkpoint: str, run_notes: dict[str, Any], notes: dict[str, Any]) -> Problem | None:
    """Return the problem of a checkpoint of another model, optimizer or tokenizer, or None if it fits the run."""
    # Settings missing in an older checkpoint had their defaults.
    defaults = {"model": dataclasses.asdict(Model()), "optimizer": Optim().state_notes()}
    mismatches = []
    extra_keys = ("seq_len",) if run_notes["model"].get("family") == "bert" else ()  # positions are parameters
    for kind, section in (("model", "model"), ("optimizer", "optim")):
        saved, now = defaults[kind] | current_section(section, notes.get(kind, {})), run_notes[kind]
        if saved.get("kv_heads") != now.get("kv_heads"):
            saved, now = _explicit(saved), _explicit(now)
        changed = {k: v for k, v in now.items() if saved.get(k) != v and (k not in _MAY_CHANGE or k in extra_keys)}
        if changed:
            was = ", ".join(f"{section}.{key} {saved.get(key)} -> {value}" for key, value in changed.items())
            mismatches.append((kind, f"another {kind} ({was})"))
    if mismatches:
        differences, kinds = (
            " and of ".join(other for _, other in mismatches),
            " and ".join(kind for kind, _ in mismatches),
        )
        hint = f"Use another run.output_dir, or the {kinds} that it was saved with"
        return Problem(f"checkpoint {checkpoint} is of {differences}", hint)
    was, now = notes.get("tokenizer", BYTES), run_notes.get("tokenizer", BYTES)
    if was != now:
        hint = "Use data that was prepared with its tokenizer, or another run.output_dir"
        return Problem(f"checkpoint {checkpoint} was trained with tokenizer {was}, but the data uses {now}", hint)
    return None


def _explicit(notes: dict[str, Any]) -> dict[str, Any]:
    """Return notes with the number of heads of keys that a model without it has."""
    return notes | ({"kv_heads": notes["kv_heads"] or notes["heads"]} if notes.get("kv_heads") == 0 else {})


def other_examples(run_notes: dict[str, Any], notes: dict[str, Any]) -> list[str]:
    """Return a line for each change in the examples of a run that resumes from a checkpoint with these notes."""
    was, now = _of_examples(notes), _of_examples(run_notes)
    # Defaults for checkpoints older than these notes.
    was = {"order": "records, window 0, shards 1", "trained": now["trained"], "held_out": now["held_out"]} | was
    changed = [key for key in _EXAMPLES if key in now and was.get(key) != now[key]]
    if not changed:
        return []
    changes = ", ".join(f"{_EXAMPLES[key]} {was.get(key)} -> {now[key]}" for key in changed)
    lines = [f"the order of records has changed: {changes}"]
    if now["held_out"] and not set(changed).issubset(_KEEPS_SPLIT):
        lines.append(
            "the evaluation split changed and may overlap the training data; eval_loss is computed over other examples"
        )
    return lines


def _of_examples(notes: dict[str, Any]) -> dict[str, Any]:
    model = dataclasses.asdict(Model()) | notes.get("model", {})
    lengths = ("seq_len", "packed", "batch_lengths")
    length = {} if model["family"] in (*IMAGE_FAMILIES, "dlrm") else {key: model[key] for key in lengths}
    values = {key: value for key, value in notes.items() if key in _EXAMPLES}
    return values | length | {"data": notes.get("data", "")[:12]}
