"""What a model is trained for, one LightningModule per objective, and what a run needs around it."""
