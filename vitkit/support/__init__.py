"""What every subpackage needs and none owns: files, output, texts, contact sheets, devices, progress, extras, errors."""
