"""Shared code of the commands attend, heads and explain: a model's layers, maps of an image, a survey of heads."""
