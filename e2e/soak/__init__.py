"""Soak: random faults, one after another, in one run on local slices, and a check that the run always continues.

    python -m e2e.soak --faults 500 --seed 1 [--slices 4] [--min-slices 2] [--output soak.json]

faults.py          kinds of faults, and the plan that follows from a seed
progress.py        the files of the run, read as they grow
slice_progress.py  the same with elastic slices
processes.py       processes of hosts: parents, states, memory, descriptors, threads
injection.py       one fault after another, and what each has cost
resources.py       growth of long-lived processes
report.py          table and document
"""
