"""Comparisons of vitkit's speed and memory with its peers: a file for each workload, one table, one JSON."""
