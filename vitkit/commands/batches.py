"""Pictures in the order in which they were named, as batches; what predict, evaluate and features read through."""
