"""Maps over patches and tokens: rollout, relevance, layout, geometry."""
