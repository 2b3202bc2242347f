"""The outputs of models as functions: predictions, features, embeddings, reconstructions, stages."""
