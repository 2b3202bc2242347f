"""Figures of attention."""
