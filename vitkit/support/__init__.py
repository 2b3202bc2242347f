"""What every subpackage needs and none owns: files, devices, progress, optional extras, the wording of errors."""
