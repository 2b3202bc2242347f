"""Maps over image patches or tokens: rollout, relevance, layout, geometry."""
