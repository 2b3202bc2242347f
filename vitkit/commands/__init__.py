"""The commands of `vitkit`, one module each, and the options that they share."""
