"""Capture and edits of attention, from outside a model."""
