"""Does a checkpoint fit a run? Told from the notes that are kept with it, before anything is compiled."""

import dataclasses
from typing import Any

from trainer.config import Model, Optim
from trainer.errors import Problem
from trainer.tokenizer import BYTES

# Of a model, from one attempt to the next.
_MAY_CHANGE = ("compute_dtype", "remat", "attention_chunk", "loss_chunk", "seq_len", "packed")


def mismatch(checkpoint: str, mine: dict[str, Any], notes: dict[str, Any]) -> Problem | None:
    """Return why a checkpoint with these notes is none of this run's model, optimizer and tokenizer, if it is none."""
    # What an older checkpoint does not tell, it had by default.
    defaults = {"model": dataclasses.asdict(Model()), "optimizer": Optim().state_notes()}
    others = []
    learned = ("seq_len",) if mine["model"].get("family") == "bert" else ()  # its positions are parameters
    for kind, section in (("model", "model"), ("optimizer", "optim")):
        saved = defaults[kind] | notes.get(kind, {})
        changed = {k: v for k, v in mine[kind].items() if saved.get(k) != v and (k not in _MAY_CHANGE or k in learned)}
        if changed:
            was = ", ".join(f"{section}.{key} {saved.get(key)} -> {value}" for key, value in changed.items())
            others.append((kind, f"another {kind} ({was})"))
    if others:
        what, kinds = " and of ".join(other for _, other in others), " and ".join(kind for kind, _ in others)
        hint = f"Use another run.output_dir, or the {kinds} it was made with"
        return Problem(f"checkpoint {checkpoint} is of {what}", hint)
    was, now = notes.get("tokenizer", BYTES), mine.get("tokenizer", BYTES)
    if was != now:
        hint = "Use data that was prepared with its tokenizer, or another run.output_dir"
        return Problem(f"checkpoint {checkpoint} was trained on tokens of {was}, the data has those of {now}", hint)
    return None
