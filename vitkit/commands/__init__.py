"""What `vitkit` does besides training: a module for each command, and what they share."""
