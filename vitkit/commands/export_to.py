"""`vitkit export --to`: a model in the layout of another library, which loads it strictly and gives equal numbers."""
