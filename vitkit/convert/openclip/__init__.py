"""OpenCLIP's models: config, tensors, towers, and the library that loads them."""
