"""What a CLIP is worth on pictures with captions: how far in front each finds what belongs to it.

N pictures that could be read, U texts, P pairs of a picture and a text, E embedding.
"""
