"""Training runs: command, config, run folder, resume, checkpoints, EMA, logs, report, early stopping."""
