"""The page of an image: attention maps, heads, head ablation, statistics over data."""
