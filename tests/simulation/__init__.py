"""Simulation of the local control plane: years of a cluster's life in minutes, replayed from a seed.

The controllers, the store's transactions and their objects are those of xpk.local. Replaced are the clock, random
numbers, hosts (machine.py), users, and everything that fails (life.py). properties.py says what must always hold.
"""
