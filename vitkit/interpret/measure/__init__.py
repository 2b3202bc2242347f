"""Statistics of heads, ablation, faithfulness."""
