"""How a run goes: command, config, run folder, resume, checkpoints, EMA, logs, report, early stopping."""
