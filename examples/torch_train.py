"""Train a small network over all hosts of a slice with PyTorch on CPUs, and resume after a restart.

xpk workload create net --max-restarts 3 --script-dir examples --command 'python torch_train.py'
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from torch import distributed, nn

import xpk_run

STEPS = int(os.environ.get("STEPS", "200"))
SAVE_EVERY, ROWS, FEATURES = 20, 64, 8
PREEMPTED = 143  # after SIGTERM, with the state saved: the restart is not counted
RANK, HOSTS = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
must_end = torch.zeros(1)


def on_sigterm(*_: object) -> None:
    """Note that this host has to end; all hosts agree on the step in `main`."""
    must_end.fill_(1)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this host's rows of a step: a function of the step and the host, so that a restart repeats none."""
    random = torch.Generator().manual_seed(step * HOSTS + RANK)
    x = torch.randn(ROWS, FEATURES, generator=random)
    return x, x.prod(dim=1, keepdim=True).tanh()


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint under another name first: a reader never sees half a file."""
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "writing")
    os.replace(folder / "writing", folder / f"step-{step:06}.pt")


def main() -> None:
    """Train from the newest checkpoint on."""
    signal.signal(signal.SIGTERM, on_sigterm)
    address = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    distributed.init_process_group("gloo", init_method=address, rank=RANK, world_size=HOSTS)
    folder = Path(os.environ["XPK_OUTPUT_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)  # all hosts begin with the same weights
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    first = 0
    if newest := max(folder.glob("step-*.pt"), default=None):
        state = torch.load(newest)
        first = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        xpk_run.log(resumed_step=first)
    replicas = nn.parallel.DistributedDataParallel(model)  # its backward pass averages gradients over all hosts
    if RANK == 0:
        print(f"{HOSTS} hosts, starting after step {first}", flush=True)
    for step in range(first + 1, STEPS + 1):
        x, y = batch(step)
        loss = nn.functional.mse_loss(replicas(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        xpk_run.log(step=step, steps=STEPS, loss=loss.item(), examples=ROWS * HOSTS)
        ending = must_end.clone()
        distributed.all_reduce(ending)
        if RANK == 0 and (step % SAVE_EVERY == 0 or ending.item()):
            save(folder, step, model, optimizer)
            print(f"step {step}: loss {loss.item():.6f}", flush=True)
        if ending.item():
            sys.exit(PREEMPTED)


if __name__ == "__main__":
    main()
