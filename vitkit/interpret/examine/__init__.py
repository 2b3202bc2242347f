"""What the commands attend, heads and explain share: a model with its layers, maps of an image, statistics of heads."""
