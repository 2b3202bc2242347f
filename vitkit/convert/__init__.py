"""Models of other libraries in and out. `convert/{timm,hf,openclip}` hold a library each; `open.py` opens them all."""
