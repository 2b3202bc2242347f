"""Data sets that Python packages ship, or that are drawn here."""
