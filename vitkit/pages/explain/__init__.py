"""The page of an image: maps, heads, ablations, statistics over data."""
