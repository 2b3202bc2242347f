"""Sources of images, their annotations, demo sets, preprocessing, tokenizer, order, and the DataModules."""
