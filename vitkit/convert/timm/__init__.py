"""timm's Vision Transformers: config, tensors, and the library that loads them."""
