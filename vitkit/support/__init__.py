"""Helpers for all subpackages: files, output, texts, contact sheets, devices, progress, extras, wording of errors."""
