"""Attention seen, mapped, measured, drawn and examined."""
