"""Inspection of machines and clusters: doctor, support bundle, versions."""
