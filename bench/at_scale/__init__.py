"""Workloads of thousands of hosts on real controllers, with nodes and pods emulated by KWOK."""
