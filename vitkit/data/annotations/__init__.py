"""Annotations of a sample: labels, captions, none.

An `Annotation` parses what a source's `Listing` says of its samples, whatever kind of source it is.
"""
