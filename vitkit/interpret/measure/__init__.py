"""Measurements of attention: statistics and ablation of heads, faithfulness and localisation of maps."""
