"""What every subpackage needs and none owns.

Files, output, texts, contact sheets, devices, progress, optional extras, the wording of errors.
"""
