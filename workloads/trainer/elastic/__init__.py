"""Elastic slices: a run that continues when slices are lost, and that they join again.

Every slice is a JAX world of its own. The batch has one share for each slice that the run was created with, the
virtual replicas. The hosts add the gradients of the shares in the order of replicas, whichever slices have computed
them, so that the losses have the same bits with any number of slices (docs/elastic.md).

    connections.py  TCP connections between the hosts of equal number in different slices
    reduction.py    sums over the shares, which survive the loss of slices
    handover.py     the state, from an active slice to one that joins
    train.py        the step loop

hosts/membership.py knows which slices are active.
"""
