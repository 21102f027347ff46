"""Chaos matrix: every kind of fault in a run of every program, on local hosts and on kind, one cell at a time.

    python -m e2e.matrix --platform local [--program trainer] [--fault kill-process] [--seed 1]
    python -m e2e.matrix --list
    python -m e2e.matrix --table

With XPK_E2E_KEEP=FOLDER the kind cluster stays, and the next invocation goes on with it, as e2e/kind_cluster.py says.

fault.py         kinds of faults: name, description, expectation, programs
programs.py      the three programs, and their undisturbed runs
cell.py          one fault in one run: start, strike, check
paced.py         the plain command: examples/jax_train.py with a pace and a record
signals.py       faults: signals to processes
exits.py         faults: exit codes
moments.py       faults: at a certain moment, and in the program itself
clock.py         faults: the time of day of a host, by clock.c
storage.py       faults: disks and checkpoints
bucket.py        faults: an object store
network.py       faults: links between hosts
commands.py      faults: the command line and the control plane of local clusters
nodes.py         faults: pods and nodes of kind, and the links between them
control_plane.py faults: API server, etcd, controllers, webhooks and names of kind
on_kind.py       the cluster of a cell on kind, commands in its nodes, and lost packets
absent.py        why a fault is injected on one platform only
results.py       results by cell, merged from many runs
page.py          docs/chaos.md
"""
