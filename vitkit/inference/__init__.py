"""What a model answers, as functions: predictions, features, embeddings, reconstructions, stages."""
