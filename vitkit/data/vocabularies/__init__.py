"""Kinds of vocabulary: CLIP's, bytes, tokenizer.json, SentencePiece; their files and their training."""
