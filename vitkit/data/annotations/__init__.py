"""Annotations of a sample: labels, captions, none.

An `Annotation` parses the raw annotations in the `Listing` of any kind of source.
"""
