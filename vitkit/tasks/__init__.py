"""One LightningModule per objective."""
