"""Registry of the slices of an elastic workload: its server, for the supervisor, and its client, for the trainer.

The modules also run in users' images, so they use only the standard library of Python 3.8.
"""
