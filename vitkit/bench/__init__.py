"""vitkit beside its peers, a file for each workload, one table, one JSON."""
