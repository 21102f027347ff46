"""Observation of a run: the step log, stragglers, memory and profiles."""
