"""The commands of `vitkit`: a module for each, and the options that they share."""
