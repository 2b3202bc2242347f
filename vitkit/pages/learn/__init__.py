"""The page of lessons on what a Transformer computes."""
