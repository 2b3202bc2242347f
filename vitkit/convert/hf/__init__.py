"""Hugging Face's ViT, DeiT, ViTMAE, DINOv2, CLIP and SigLIP: configs, tensors, image processors."""
