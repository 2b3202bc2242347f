"""Kinds of vocabulary: CLIP's, bytes, tokenizer.json, SentencePiece; what they are read from and trained by."""
