"""Goodput of runs that restart: failure rates, and the best checkpoint intervals. For the tool and the trainer."""
