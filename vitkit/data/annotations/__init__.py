"""What is known of a sample: labels, captions."""
