"""Attention captured and changed from outside a model."""
