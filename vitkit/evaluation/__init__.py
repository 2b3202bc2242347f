"""Metrics, probes, baselines and evaluations as functions, with their figures and report."""
