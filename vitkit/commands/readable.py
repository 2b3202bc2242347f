"""A model whose tokens can be read: a ViT, also a CLIP's image tower, or an MAE's encoder, which hides nothing here.

Letters: B batch, C channels, T tokens, D width, h w patches down and across.
"""
