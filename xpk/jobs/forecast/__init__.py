"""Forecast of goodput: failures, recoveries and checkpoint intervals of a run that does not exist yet."""
