"""Foreign weights: one file for each source, with name tables and reshapes. No I/O, no model."""
