"""A model and what belongs to it: its folder on disk, strict loading, config, fingerprint, transfer of weights."""
